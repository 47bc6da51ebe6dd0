"""Keeping the bars and warnings of transformers and the Hub's client off the terminal while they work for us.

Knows their logging switches; nothing else. Needed by whatever loads models here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence bars and warnings inside the block; both are as before after it."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_verbosity = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # it reports every retry of a Hub that cannot be reached
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
