"""`drafterzoo pull`: a checkpoint from the Hub, into its cache or a folder.

Knows how addresses are typed; nothing of how anything is fetched.
"""

from __future__ import annotations

from pathlib import Path

from drafterzoo.cli.console import Json, err, out, print_json


def pull(address: str, /, *, to: Path | None = None, json: Json = False) -> None:
    """Fetch a checkpoint from the Hub.

    Example: `drafterzoo pull hub:org/name@v1`, or `drafterzoo pull hub:org/name --to checkpoints/name`

    Fetched once: the same command finds it in huggingface_hub's cache, also without a network (HF_HUB_OFFLINE=1). For
    private repositories log in with `hf auth login`. `-d hub:org/name@v1` in any other verb fetches by itself.

    Parameters
    ----------
    address
        `hub:org/name`, or `hub:org/name@revision` for a branch, a tag or a commit.
    to
        A folder to copy it to, which must not hold anything yet. Default: it stays in the cache.
    """
    from drafterzoo import hub
    from drafterzoo.catalogue import on_hub

    repo_id, revision = on_hub(address)
    folder = hub.pull(repo_id, revision=revision) if to is None else hub.pull_to(to, repo_id, revision=revision)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    if json:
        print_json({"repo_id": repo_id, "revision": revision, "folder": folder, "files": files})
        return
    for name, size in files.items():
        out().print(f"{size / 1e6:10.2f} MB  {name}", markup=False, soft_wrap=True)
    out().print(str(folder), markup=False, soft_wrap=True)
    err().print(f"load it with 'hub:{address.removeprefix('hub:')}'", style="dim", soft_wrap=True)
