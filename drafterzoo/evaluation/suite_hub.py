"""Files of data sets on the Hub: fetched once, kept in huggingface_hub's own cache, their hashes checked.

Knows huggingface_hub and a declaration's [hub]; nothing of rows or prompts.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from drafterzoo.errors import DataError
from drafterzoo.evaluation.suite_declarations import HubFiles


class NotFetched(Exception):
    """Why files cannot be had from the Hub, as the middle of a sentence."""


def fetch(hub: HubFiles) -> list[Path]:
    """Download what is not in the cache yet and return the files. Raises NotFetched with the reason."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    offline = not _resolves()
    files = []
    for name in hub.files:
        try:
            path = hf_hub_download(hub.id, name, repo_type="dataset", revision=hub.revision, local_files_only=offline)
        except LocalEntryNotFoundError as error:
            raise NotFetched("cannot be reached") from error
        except GatedRepoError as error:
            raise NotFetched("wants you to accept its terms and to log in with `hf auth login`") from error
        except RepositoryNotFoundError as error:
            raise NotFetched("has no such data set") from error
        except RevisionNotFoundError as error:
            raise NotFetched(f"has no revision {hub.revision} of it") from error
        except EntryNotFoundError as error:
            raise NotFetched(f"has no file {name} in it") from error
        except HfHubHTTPError as error:
            raise NotFetched(f"answered {str(error).splitlines()[0].rstrip('.')}") from error
        except OSError as error:
            raise NotFetched(f"cannot be reached ({error.__class__.__name__})") from error
        files.append(Path(path))
    return files


def _resolves() -> bool:
    """Whether the Hub has an address from here. Asked first: without one, the client would try for half a minute."""
    from huggingface_hub import constants

    if getproxies():
        return True  # the proxy resolves names
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def cached(hub: HubFiles) -> bool:
    """Whether every file is in the cache already. Asks no network."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(hub.id, name, repo_type="dataset", revision=hub.revision) for name in hub.files)
    return all(isinstance(path, str) for path in found)


def check_files(name: str, hub: HubFiles, files: list[Path]) -> bool:
    """Whether every file has a recorded sha256. Raises DataError for one that has another."""
    for place, path in zip(hub.files, files, strict=True):
        expected, found = hub.sha256.get(place), file_sha256(path)
        if expected and found != expected:
            raise DataError(
                f"suite {name!r}: {place} of {hub.id} has sha256 {found}, expected {expected}; "
                f"delete {path} to fetch it again, or go on with it unchecked: check=False (--unchecked-suite)."
            )
    return all(place in hub.sha256 for place in hub.files)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
