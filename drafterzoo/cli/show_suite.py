"""`drafterzoo show <suite>`: what a suite is, under which licence, and whether its data is at hand.

Knows declarations and where data may lie; reads no prompt and asks no network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drafterzoo.cli.console import out, print_json
from drafterzoo.registry import SUITES


def show_suite(name: str, data_dir: Path | None, json: bool) -> None:
    """Print a registered suite's declaration and the place of its data."""
    facts = suite_facts(name, data_dir)
    if json:
        print_json(facts)
        return
    from rich.text import Text

    console = out()
    console.print(Text(name, style="bold"))
    for key, value in facts.items():
        if key != "name" and value not in (None, "", [], {}):
            console.print(Text(f"  {key.replace('_', ' '):<14}{_words(value)}"), soft_wrap=True)
    if facts["at_hand"] is None:
        wanted = facts["files"][0] if facts["files"] else f"{name}.jsonl"
        fetched = "fetched from the Hub when it is first asked for, or " if facts["hub"] else ""
        said = f"no: {fetched}put {Path(wanted).name} into a folder and name that with --data-dir"
        console.print(Text(f"  {'at hand':<14}{said}"), soft_wrap=True)


def suite_facts(name: str, data_dir: Path | None = None) -> dict[str, Any]:
    """A suite as plain values. at_hand: where its data lies here, None when it is not here."""
    from drafterzoo.evaluation.suites import at_hand

    suite = SUITES.get(name)
    hub = suite.hub
    return {
        "name": name,
        "description": suite.description,
        "prompts": suite.count,
        "turns": suite.turns,
        "licence": suite.licence,
        "source": suite.source,
        "note": suite.note,
        "sha256": suite.sha256,
        "files": [str(path) for path in suite.names],
        "file_sha256": suite.file_sha256,
        "hub": None
        if hub is None
        else {
            "id": hub.id,
            "config": hub.config,
            "split": hub.split,
            "revision": hub.revision,
            "files": list(hub.files),
            "sha256": dict(hub.sha256),
        },
        "field": suite.field,
        "template": suite.template,
        "when_present": dict(suite.when_present),
        "where": dict(suite.where),
        "at_hand": at_hand(name, data_dir),
    }


def _words(value: Any) -> str:
    """A value on one line; text that has several is shown with its line ends written out."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items() if part not in (None, "", [], {}))
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return repr(value) if isinstance(value, str) and "\n" in value else str(value)
