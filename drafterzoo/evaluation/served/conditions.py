"""The conditions of a run against a server: what was asked, and who says that they answered it.

Knows servers by what they tell of themselves; nothing of HTTP or records. What a server does not tell (its machine, its
precision, its chat template) is written as not told. That, and the server's own section, keep these results out of
every table of runs in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from drafterzoo.evaluation.conditions import Settings, asked_of, code
from drafterzoo.evaluation.served.answers import Server
from drafterzoo.evaluation.suites import Suite

NOT_TOLD = "not told"


def gather(
    suite: Suite, limit: int | None, settings: Settings, drafted: Mapping[str, Server], plain: Server | None
) -> dict[str, Any]:
    """The contents of conditions.json. drafted: the server that speculates, by the name of its row."""
    main = next(iter(drafted.values()), plain)
    assert main is not None, "somebody is asked"
    return {
        "target": {"name": main.about.model, "dtype": main.about.dtype or f"dtype {NOT_TOLD}", "packed": False},
        **asked_of(suite, limit, settings, template=None),
        "server": {**_said(main), "baseline": _said(plain) if plain is not None and plain is not main else None},
        "machine": {"device": "server", "device_name": f"{main.about.name}, its machine {NOT_TOLD}", "threads": None},
        "code": code(),
        "drafters": {name: _drafter(server) for name, server in drafted.items()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "budgets": [server.about.budget for server in drafted.values()],
    }


def _said(server: Server) -> dict[str, Any]:
    about = attrs.asdict(server.about)
    return {"endpoint": server.place, **{key: about[key] for key in ("kind", "version")}, "rounds": server.about.told}


def _drafter(server: Server) -> dict[str, Any]:
    return {"served": True, "method": server.about.method, "model": server.about.drafter, "weights_sha256": None}
