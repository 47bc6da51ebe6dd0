"""`python -m drafterzoo.cli`: the command line without its script."""

from __future__ import annotations

import sys

from drafterzoo.cli import main

sys.exit(main())
