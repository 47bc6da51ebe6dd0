"""From lines to the summary of an evaluation, and from that to tables.

Knows lines, the paired statistics and how a grid of text is drawn; nothing of models or files. A summary holds no
times: the same rollouts give the same summary, in however many goes it was computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from drafterzoo.evaluation.metrics import ratio
from drafterzoo.evaluation.offline.lines import Line
from drafterzoo.evaluation.statistics import Z95, Array, PairedRatio, paired_ratio
from drafterzoo.evaluation.tables import NOTHING, Grid, interval, number, short_budget
from drafterzoo.wording import portion, quantity, verb

MATCH_DEFINITION = (
    "τ counts the bonus token: committed tokens per target call, accepted + 1, cut at EOS, the round that the length "
    "limit cuts counted whole; MAL: the answers' tokens per target call"
)
REJECTION_DEFINITION = (
    "MAL: the answers' tokens per expected target call, the bonus token counted, cut at EOS and at the length limit; τ "
    "is the same here; MAL (c): by the second estimator, which agrees on average when temperature and filters are right"
)


def summarise(lines: Sequence[Line], conditions: Mapping[str, Any], *, rollouts: int) -> dict[str, Any]:
    """The summary: one row per cell in the conditions' order, and each cell against the first drafter's.

    rollouts: how many there are to evaluate; `complete` says whether every cell has them all.
    """
    cells: dict[tuple[str, str], list[Line]] = {
        (drafter, budget): [] for budget in conditions["budgets"] for drafter in conditions["drafters"]
    }
    for line in sorted(lines, key=lambda line: line.rollout):
        cells[line.drafter, line.budget].append(line)
    rejects = conditions["sampling"]["rule"] == "rejection"
    return {
        "definition": REJECTION_DEFINITION if rejects else MATCH_DEFINITION,
        "conditions": dict(conditions),
        "complete": all(len(of) == rollouts for of in cells.values()),
        "rollouts": rollouts,
        "rows": [_row(of) for of in cells.values() if of],
        "comparisons": _comparisons(cells, list(conditions["drafters"])),
    }


def _row(lines: Sequence[Line]) -> dict[str, Any]:
    rounds, tokens = math.fsum(line.rounds for line in lines), sum(line.tokens for line in lines)
    committed = sum(sum(line.committed) for line in lines) if lines[0].smoothed is None else tokens
    smoothed = None if lines[0].smoothed is None else math.fsum(line.smoothed or 0.0 for line in lines)
    at_least = [math.fsum(column) for column in zip(*(line.at_least for line in lines), strict=True)]
    return {
        "cell": lines[0].cell,
        "drafter": lines[0].drafter,
        "budget": lines[0].budget,
        "rollouts": len(lines),
        "prompts": len({line.prompt for line in lines}),
        "tokens": tokens,
        "rounds": rounds,
        "rounds_smoothed": smoothed,
        "tau": ratio(committed, rounds),
        "mal": ratio(tokens, rounds),
        "mal_smoothed": None if smoothed is None else ratio(tokens, smoothed),
        "rounds_of_at_least": at_least,
        "acceptance": [ratio(more, some) for some, more in pairwise(at_least)],
        "nodes_per_round": _per_round(lines, "nodes"),
        "forwards_per_round": _per_round(lines, "forwards"),
        "rows_per_round": _per_round(lines, "rows"),
        "open_rounds": sum(line.open for line in lines),
        "doubtful_tokens": sum(line.doubtful for line in lines),
        "categories": {name: _figures(part) for name, part in _by_category(lines).items()},
    }


def _figures(lines: Sequence[Line]) -> dict[str, Any]:
    tokens = sum(line.tokens for line in lines)
    return {"rollouts": len(lines), "mal": ratio(tokens, math.fsum(line.rounds for line in lines))}


def _by_category(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.category, []).append(line)
    return groups


def _per_round(lines: Sequence[Line], name: str) -> float | None:
    """A raw counter per round; None under `rejection`, where no single rounds are seen."""
    values = [value for line in lines for value in getattr(line, name)]
    return ratio(sum(values), len(values))


def _comparisons(cells: Mapping[tuple[str, str], Sequence[Line]], drafters: Sequence[str]) -> list[dict[str, Any]]:
    """Every later drafter over the first at the same budget: the ratio of MAL on the rollouts that both have."""
    return [
        {"budget": budget, "drafter": drafter, "against": drafters[0], "mal_ratio": mal_ratio(lines, base)}
        for (drafter, budget), lines in cells.items()
        if drafter != drafters[0] and lines and (base := cells[drafters[0], budget])
    ]


def mal_ratio(better: Sequence[Line], base: Sequence[Line]) -> dict[str, Any]:
    """MAL of `better` over MAL of `base` on shared rollouts: base's rounds over better's (methods.md 2.8).

    Clusters are prompts. `se` and the delta interval linearise over them; low and high are by bootstrap.
    """
    found = paired_ratio(*mal_columns(better, base).T)
    width = None if found.delta_high is None or found.delta_low is None else found.delta_high - found.delta_low
    return {**found.as_dict(), "se": None if width is None else width / (2 * Z95)}


def mal_columns(better: Sequence[Line], base: Sequence[Line]) -> Array:
    """What `mal_ratio` is computed from, [C, 4] = xn, xd, yn, yd, one row per prompt.

    Both have the same tokens, so they cancel: the rates are rounds per token, base's over better's.
    """
    of_base = {line.rollout: line for line in base}
    sums: dict[str, list[float]] = {}
    for line in better:
        if line.rollout in of_base:
            row = sums.setdefault(line.prompt, [0.0] * 4)
            for place, amount in enumerate((of_base[line.rollout].rounds, line.tokens, line.rounds, line.tokens)):
                row[place] += amount
    return np.array(list(sums.values())) if sums else np.zeros((0, 4))


def mal_interval(lines: Sequence[Line]) -> PairedRatio:
    """MAL itself with its intervals over prompts: its ratio to plain decoding's, which is 1 whatever the prompt."""
    columns = mal_columns(lines, lines)
    return paired_ratio(*columns[:, [1, 0, 0, 0]].T)


def doubts(summary: Mapping[str, Any]) -> list[str]:
    """What the numbers cannot say: what was seen in training, what the rollouts do not show, what does not fit."""
    rollouts, lines = summary["conditions"]["rollouts"], []
    if rollouts["seen_in_training"]:
        lines.append(
            f"rollouts: {rollouts['seen_in_training']} of {rollouts['rows']} "
            f"{verb(rollouts['seen_in_training'], 'is', 'are')} marked 'train', and a drafter trained "
            f"on this file has seen them; --split val leaves them out"
        )
    if opened := max((row["open_rounds"] for row in summary["rows"]), default=0):
        lines.append(
            f"τ: the last round of up to {quantity(opened, 'answer')} may have gone further than the file shows, and "
            f"counts as far "
            f"as it does; MAL is exact (rollouts made with --look-ahead 8 show it)"
        )
    if doubtful := max((row["doubtful_tokens"] for row in summary["rows"]), default=0):
        lines.append(
            f"rollouts: {quantity(doubtful, 'token')} {verb(doubtful, 'has', 'have')} no chance at this temperature, "
            f"top-p and top-k; were the answers drawn "
            f"otherwise?"
        )
    return lines


# ------------------------------------------------------------------------------------------------------------ tables


def grids(summary: Mapping[str, Any]) -> list[Grid]:
    """The results, and acceptance by depth."""
    return [_results(summary), _depths(summary)]


def conditions_line(conditions: Mapping[str, Any], held: Sequence[int] = ()) -> str:
    """The conditions on one line: rollouts, target, sampling, rule, convention.

    held: how many of the rollouts are shown; left out, all of them.
    """
    rollouts, target, sampling = conditions["rollouts"], conditions["target"], conditions["sampling"]
    convention = conditions["convention"]
    chosen = "" if rollouts["split"] is None else f" of split {rollouts['split']}"
    drawn = f"T={sampling['temperature']:g}"
    if sampling["temperature"]:
        drawn += f", top-p {sampling['top_p']:g}, top-k {sampling['top_k']}"
        drawn += "" if sampling["coupled"] or sampling["rule"] != "match" else ", not coupled"
    counted = "" if convention["start"] == "prefill" else ", first token in a round"
    counted += "" if convention["boundary"] == "last" else ", boundary ahead of the limit"
    return (
        f"{rollouts['name']}: {portion(held or [rollouts['rows']], rollouts['rows'], 'rollout')}{chosen} of "
        f"{quantity(rollouts['prompts'], 'prompt')}; "
        f"{target['name']} {target['dtype']}; {drawn}, {sampling['rule']}{counted}"
    )


def _results(summary: Mapping[str, Any]) -> Grid:
    ratios = {(pair["drafter"], pair["budget"]): pair for pair in summary["comparisons"]}
    rejects = summary["conditions"]["sampling"]["rule"] == "rejection"
    first = next(iter(summary["conditions"]["drafters"]))
    lines = []
    for row in summary["rows"]:
        pair = ratios.get((row["drafter"], row["budget"]))
        lines.append(
            (
                row["drafter"],
                short_budget(row["budget"]),
                number(row["tau"]),
                number(row["mal"], 3),
                number(row["mal_smoothed"], 3) if rejects else number(row["nodes_per_round"], 1),
                number(row["rounds"] / row["rollouts"], 1),
                interval(pair["mal_ratio"]) if pair else "1" if row["drafter"] == first else NOTHING,
            )
        )
    columns = ("drafter", "budget", "τ with\nbonus", "MAL", "MAL (c)" if rejects else "nodes", "rounds per\nanswer")
    caption = f"{summary['definition']}. Ratios of MAL are paired by prompt, with 95 % bootstrap intervals."
    return Grid(conditions_line(summary["conditions"]), caption, (*columns, f"over {first}\n[95 %]"), tuple(lines))


def _depths(summary: Mapping[str, Any]) -> Grid:
    deepest = max((len(row["acceptance"]) for row in summary["rows"]), default=0)
    lines = []
    for row in summary["rows"]:
        cells = [NOTHING if value is None else f"{100 * value:.0f}" for value in row["acceptance"]]
        lines.append((row["drafter"], short_budget(row["budget"]), *cells, *[NOTHING] * (deepest - len(cells))))
    caption = (
        "At depth d, of the rounds that committed at least d tokens, the share that committed one more. The round that "
        "an answer ends in counts as refused at its end, so that short answers show slightly low figures."
    )
    columns = ("drafter", "budget", *(str(depth + 1) for depth in range(deepest)))
    return Grid("Acceptance by depth, in per cent", caption, columns, tuple(lines))
