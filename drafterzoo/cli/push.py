"""`drafterzoo push`: a checkpoint's folder to the Hub, with a card, as one commit.

Knows how options are typed; nothing of how anything is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, err, out, print_json

if TYPE_CHECKING:
    from drafterzoo.hub import Pushed

Switch = Annotated[bool, Parameter(negative="")]


def push(
    checkpoint: str,
    repository: str,
    /,
    *,
    private: Switch = False,
    revision: str | None = None,
    create_pr: Switch = False,
    tag: str | None = None,
    message: Annotated[str | None, Parameter(alias="-m")] = None,
    results: Path | None = None,
    licence: Annotated[str | None, Parameter(alias="--license")] = None,
    server: Annotated[list[Literal["vllm", "sglang"]] | None, Parameter(name="--for", negative="")] = None,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    dry_run: Switch = False,
    json: Json = False,
) -> None:
    """Send a checkpoint to the Hub, with a card, as one commit.

    Example: `drafterzoo push runs/hass+pr/best me/hass-pr-smollm2 --results runs/bench-hass-pr --dry-run`

    The checkpoint and what belongs beside it go; a card is written from the config, and from results, where the folder
    has no README.md. First it is loaded from what would go, with its target: nothing is sent unless every tensor comes
    back as it is. The repository and the branch are made if need be. Log in with `hf auth login`.

    Parameters
    ----------
    checkpoint
        A checkpoint's folder, such as the `best` of a training run, with or without `dir:` before it.
    repository
        Where to: `me/name`.
    private
        Make the repository a private one. Refused where there is a public one of that name.
    revision
        The branch to push to. Default: main.
    create_pr
        Open a pull request in a repository that is there, instead of pushing to it.
    tag
        Give the commit this name, too.
    message
        The commit's message.
    results
        A folder of `drafterzoo bench`, `grid` or `evaluate` that measured this checkpoint, for the card.
    licence
        The licence of the weights as the Hub spells it (`apache-2.0`), for the card.
    server
        Send that server's layout, too, in a folder of its name, and say on the card how to start it. May be given
        twice.
    target
        The target's name or directory; without it, the one the checkpoint was trained for.
    dry_run
        Say what would go, and send nothing.
    """
    from drafterzoo import hub

    folder = Path(checkpoint.removeprefix("dir:")).expanduser()
    how = hub.Push(private or None, revision, create_pr, tag, message, results, licence, server or (), dry_run)
    sent = hub.push_folder(folder, repository.removeprefix("hub:"), how, target)
    if json:
        import attrs

        print_json(attrs.asdict(sent))
    else:
        _print(sent)


def _print(sent: Pushed) -> None:
    for path, size in sent.files.items():
        out().print(f"{size / 1e6:10.2f} MB  {path}", markup=False, soft_wrap=True)
    said = [f"card: {sent.card}"]
    if sent.left_out:
        said.append(f"left out: {', '.join(sent.left_out)}")
    for line in said:
        err().print(line, soft_wrap=True)
    if sent.url is None:
        err().print(f"nothing was sent; without --dry-run it goes to {sent.repo_id}", soft_wrap=True)
        return
    out().print(sent.pull_request or sent.url, markup=False, soft_wrap=True)
    revision = sent.tag or str(sent.commit)[:12]
    err().print(f"load it with 'hub:{sent.repo_id}@{revision}'", style="dim", soft_wrap=True)
