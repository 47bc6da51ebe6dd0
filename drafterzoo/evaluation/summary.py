"""From records to the summary: one plain dict per cell, and whether every text was plain decoding's.

Knows the metrics and the statistics; nothing of models, files or how a table looks. A summary can be computed again
from rounds.jsonl at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import attrs

from drafterzoo.budget import Budget
from drafterzoo.evaluation import metrics, statistics
from drafterzoo.evaluation.conditions import conditions_key
from drafterzoo.evaluation.results import Record

PLAIN = "none"
TIE = 1e-3  # a logit gap below this is a tie that rounding may decide either way
DEFINITION = (
    "τ counts the bonus token: committed tokens per target call, accepted + 1, cut at EOS, pooled over rounds; "
    "speed-up: plain decoding's time over the drafter's on the same prompts, prefill excluded, of repeats the median, "
    "with a 95 % bootstrap interval over prompts"
)


@attrs.frozen
class Difference:
    """The first place where a cell's answer leaves plain decoding's. A token is None where that answer has ended.

    position counts from the first answer token. unit: "character" where a server gives no ids and texts are compared;
    position counts those then, and both tokens are None. gap: by how much the target preferred plain's token there
    (None: not measured, or one of the two is filtered out). A gap under 1e-3 is a tie.
    """

    cell: str
    prompt: str
    turn: int
    repeat: int
    position: int
    plain_token: int | None
    token: int | None
    gap: float | None = None
    unit: Literal["token", "character"] = "token"

    @property
    def tie(self) -> bool:
        return self.gap is not None and abs(self.gap) < TIE


def differences(records: Sequence[Record]) -> Iterator[Difference]:
    """Every answer that is not plain decoding's, token for token, with the place of the first difference.

    Each repeat, plain's own repeats included, is compared with plain decoding's first.
    """
    plain = {(r.prompt, r.turn): r for r in records if r.cell == PLAIN and r.repeat == 0}
    for r in records:
        reference = plain.get((r.prompt, r.turn))
        if reference is None:
            continue
        if r.tokens is None or reference.tokens is None:
            if r.text != reference.text:
                place = _first_difference(reference.text or "", r.text or "")
                yield Difference(r.cell, r.prompt, r.turn, r.repeat, place, None, None, unit="character")
        elif r.tokens != reference.tokens:
            place = _first_difference(reference.tokens, r.tokens)
            yield Difference(
                r.cell, r.prompt, r.turn, r.repeat, place, _at(reference.tokens, place), _at(r.tokens, place)
            )


def where(difference: Mapping[str, Any]) -> str:
    """The place of a difference for people: `token 4: 7 instead of 9`, or `character 12`."""
    place = f"{difference['unit']} {difference['position']}"
    if difference["unit"] == "character":
        return place
    return f"{place}: {difference['token']} instead of {difference['plain_token']}"


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _at(tokens: Sequence[int], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None


def summarise(
    records: Sequence[Record],
    conditions: Mapping[str, Any],
    found: Sequence[Difference] | None = None,
    *,
    must_be_equal: bool = True,
) -> dict[str, Any]:
    """The summary of a run: conditions, one row per cell in the conditions' order, and the check for equal texts.

    found: the differences with their gaps; without it they are found anew and their gaps are not known.
    must_be_equal: False under `rejection` when sampling, where texts agree in distribution only.
    """
    cells: dict[str, list[Record]] = {}
    for r in sorted(records, key=lambda r: _place(r, conditions)):  # stable, so prompts stay in their order
        cells.setdefault(r.cell, []).append(r)
    plain = cells.get(PLAIN, [])
    compared = must_be_equal and bool(plain)  # without plain decoding there is nothing to equal
    unlike = (list(differences(records)) if found is None else list(found)) if compared else []
    rows = [_row(rows, plain, [d for d in unlike if d.cell == cell], compared) for cell, rows in cells.items()]
    return {
        "definition": DEFINITION,
        "conditions_key": conditions_key(conditions),
        "conditions": dict(conditions),
        "answers": len({(r.prompt, r.turn) for r in records}),
        "rows": rows,
        "comparisons": _comparisons(cells),
        "lossless": {
            "checked": must_be_equal,
            "unit": "character" if any(r.tokens is None for r in records) else "token",
            "texts": len(records) - len(metrics.first(plain)) if compared else 0,
            "different": len(unlike),
            "ties": sum(d.tie for d in unlike),
            "differences": [{**attrs.asdict(d), "tie": d.tie} for d in unlike],
        },
    }


def _place(record: Record, conditions: Mapping[str, Any]) -> tuple[int, int]:
    """Where a cell's row stands: plain decoding first, then drafters and budgets as they were given."""
    if record.cell == PLAIN:
        return -1, -1
    return list(conditions["drafters"]).index(record.drafter), conditions["budgets"].index(record.budget)


def _row(records: list[Record], plain: list[Record], unlike: list[Difference], compared: bool) -> dict[str, Any]:
    some = records[0]
    depth = Budget.parse(some.budget).depth if some.budget else 0
    once = metrics.first(records)
    return {
        "cell": some.cell,
        "drafter": some.drafter,
        "budget": some.budget,
        "answers": len(once),
        **_figures(records, plain),
        "tau_macro": metrics.tau_macro(once),
        "survival": metrics.survival(once, depth),
        "conditional": metrics.conditional(once, depth),
        "forwards_per_round": metrics.forwards_per_round(once),
        "rows_per_round": metrics.rows_per_round(once),
        "nodes_per_round": metrics.nodes_per_round(once),
        "rounds": sum(r.rounds for r in once),
        "tokens": sum(r.length for r in once),
        "decode_seconds": metrics.decode_seconds(records),
        "prefill_seconds": metrics.prefill_seconds(records),
        "tokens_per_second_with_prefill": metrics.tokens_per_second_with_prefill(records),
        "speedup_with_prefill": statistics.speedup(plain, records, with_prefill=True).as_dict(),
        "milliseconds_per_round": metrics.milliseconds_per_round(records),
        "time_shares": metrics.time_shares(records),
        "texts": len(records),
        "equal_texts": len(records) - len(unlike) if compared else None,
        "ties": sum(d.tie for d in unlike),
        "categories": {
            name: {"answers": len(metrics.first(part)), **_of_category(part, [r for r in plain if r.category == name])}
            for name, part in metrics.by_category(records).items()
        },
    }


def _of_category(records: list[Record], plain: list[Record]) -> dict[str, Any]:
    """The figures of one kind of prompt. Prompts that were decoded together share their time, whatever their kind."""
    figures = _figures(records, plain)
    if any(r.group >= 0 for r in records):
        none = statistics.PairedRatio(None, None, None, None, None, 0)
        figures |= {"tokens_per_second": None, "speedup": none.as_dict()}
    return figures


def _comparisons(cells: Mapping[str, list[Record]]) -> list[dict[str, Any]]:
    """Every two drafters at the same budget, the later over the earlier: ratio of tau, and of seconds per token."""
    drafted = [records for cell, records in cells.items() if cell != PLAIN]
    return [
        {
            "budget": later[0].budget,
            "drafter": later[0].drafter,
            "against": earlier[0].drafter,
            "tau_ratio": statistics.tau_ratio(later, earlier).as_dict(),
            "speedup": statistics.speedup(earlier, later).as_dict(),
        }
        for earlier, later in combinations(drafted, 2)
        if earlier[0].budget == later[0].budget
    ]


def _figures(records: list[Record], plain: list[Record]) -> dict[str, Any]:
    """What is shown for the whole suite and for every category alike."""
    once = metrics.first(records)
    return {
        "tau": metrics.tau(once),
        "accepted_per_round": metrics.accepted_per_round(once),
        "tokens_per_second": metrics.tokens_per_second(records),
        "speedup": statistics.speedup(plain, records).as_dict(),
    }
