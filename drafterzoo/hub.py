"""Pulling and pushing checkpoints: one folder in, one commit out.

Knows huggingface_hub; nothing of drafters' insides. Tokens are huggingface_hub's own business: none is read, kept or
shown.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from drafterzoo.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter


def pull(repo_id: str, *, revision: str | None = None) -> Path:
    """Download a repository's checkpoint (once) and return its folder. Raises CheckpointError saying what to do."""
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.md"]))
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"hub:{repo_id}: has no revision {revision!r}; leave it out or name a branch, tag or commit."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"hub:{repo_id}: no such repository, or it is private and you are not logged in; "
            f"check the name or run `hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"hub:{repo_id}: the Hub cannot be reached and the repository is not in the cache; "
            f"connect, or load 'dir:path'."
        ) from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"hub:{repo_id}: the Hub answered {error}; try again, or load 'dir:path'.") from error
    except ValueError as error:  # huggingface_hub refuses a malformed name before it asks anybody
        raise UsageError(
            f"hub:{repo_id}: not the name of a repository ({error}); "
            f"expected 'hub:org/name' or 'hub:org/name@revision'."
        ) from error


def push(drafter: Drafter, repo_id: str, **options: Any) -> str:
    """Upload a drafter's native checkpoint in one commit, making the repository if need be. Returns its address.

    private: for a new repository; the other options are those of HfApi.upload_folder.
    """
    api = HfApi()
    private = options.pop("private", None)
    with tempfile.TemporaryDirectory() as folder:
        drafter.save_pretrained(folder)
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, **{"commit_message": f"{drafter.spec} checkpoint", **options}
            )
        except HfHubHTTPError as error:
            raise CheckpointError(
                f"hub:{repo_id}: the Hub refused the upload ({error}); log in with `hf auth login` and try again."
            ) from error
    return str(commit.commit_url)
