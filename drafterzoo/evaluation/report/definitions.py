"""What other projects call τ: one function each, recomputed from the raw counters.

Knows records, and what each project counts and how it averages; nothing of files, tables or pages. Every function takes
the records of ONE drafter at ONE budget, the first repeat only, and gives None when there is nothing to divide by. None
of these may be compared with another; `metrics.tau` is the one that this project ranks by.

Rounds are cut at EOS as they are recorded. What lies beyond the cut, which some projects count, is in `walked`; results
older than that counter have none, and there the functions stop at EOS too: a lower bound (`falls_short`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from drafterzoo.errors import UsageError, suggest
from drafterzoo.evaluation import metrics
from drafterzoo.evaluation.metrics import ratio
from drafterzoo.evaluation.results import Record


@attrs.frozen
class Definition:
    """A project's definition of τ. footnote: one sentence for the reader. beyond_eos: whether it uses `walked`."""

    name: str
    project: str
    footnote: str
    source: str
    beyond_eos: bool
    compute: Callable[[Sequence[Record]], float | None]

    def falls_short(self, records: Iterable[Record]) -> bool:
        """True when the definition counts beyond EOS and some record does not hold that count."""
        return self.beyond_eos and any(r.walked is None for r in records)


def vllm(records: Sequence[Record]) -> float | None:
    """1 + accepted / drafts, pooled; a draft is a round in which something was proposed. Not cut at EOS.

    Rounds without a proposal, as prompt lookup has many, are in neither count. Source: vLLM,
    vllm/v1/spec_decode/metrics.py (mean acceptance length), and issue 56101 on EOS.
    """
    if any(r.nodes is None for r in records):
        return None  # a server that does not say which rounds had a proposal
    drafts = [accepted for r in records for accepted, nodes in zip(_walked(r), r.nodes or (), strict=True) if nodes]
    return 1 + sum(drafts) / len(drafts) if drafts else None


def sglang(records: Sequence[Record]) -> float | None:
    """Tokens of the answers / verification steps, pooled over the requests.

    The token that prefill gave is in the numerator, though no step verified it; answers are cut at EOS and at the
    length limit. Source: SGLang, completion_tokens / spec_verify_ct of a request's meta_info, as its benchmarks sum it.
    """
    return ratio(sum(r.length for r in records), sum(r.rounds for r in records))


def eagle(records: Sequence[Record]) -> float | None:
    """Accepted + 1, averaged over all rounds of all questions. Not cut at EOS. Source: EAGLE, issue 195."""
    return ratio(sum(a + 1 for r in records for a in _walked(r)), sum(r.rounds for r in records))


def hass(records: Sequence[Record]) -> float | None:
    """Accepted + 1, averaged over the rounds of each question (all its turns), then over questions. Not cut at EOS.

    Source: HASS, its script acceptance_length.py.
    """
    questions: dict[str, list[int]] = {}
    for r in records:
        questions.setdefault(r.prompt, []).extend(a + 1 for a in _walked(r))
    means = [sum(lengths) / len(lengths) for lengths in questions.values() if lengths]
    return ratio(sum(means), len(means))


def specforge(records: Sequence[Record]) -> float | None:
    """The unweighted mean over requests of each request's tokens / verification steps, as SGLang reports them.

    Source: SpecForge, its benchmark command at commit a6b6b023.
    """
    means = [r.length / r.rounds for r in records if r.rounds]
    return ratio(sum(means), len(means))


def deepspec(records: Sequence[Record]) -> float | None:
    """Committed tokens / rounds, pooled, cut at EOS: the headline's own definition.

    A round that ends in an accepted EOS has no bonus token. Source: DeepSpec, deepspec/eval/base_evaluator.py; the
    DSpark paper's tables.
    """
    return metrics.tau(records)


def find(name: str) -> Definition:
    """The definition of that name. Raises UsageError with the known names."""
    if name not in DEFINITIONS:
        raise UsageError(
            f"report: unknown definition {name!r}{suggest(name, DEFINITIONS)}; use {', '.join(DEFINITIONS)}."
        )
    return DEFINITIONS[name]


def _walked(record: Record) -> tuple[int, ...]:
    return record.accepted if record.walked is None else record.walked


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition(
            "vllm",
            "vLLM",
            "1 + accepted drafts / drafting steps, pooled over all requests; steps without a proposal are left out; "
            "drafts accepted beyond EOS count.",
            "vllm/v1/spec_decode/metrics.py; vllm-project/vllm issue 56101",
            True,
            vllm,
        ),
        Definition(
            "sglang",
            "SGLang",
            "completion tokens / verification steps, pooled over all requests; the token that prefill gave counts, so "
            "short answers look better; cut at EOS and at the length limit.",
            "completion_tokens / spec_verify_ct of SGLang's meta_info",
            False,
            sglang,
        ),
        Definition(
            "eagle",
            "EAGLE",
            "accepted + 1, averaged over all rounds; drafts accepted beyond EOS count.",
            "the authors in SafeAILab/EAGLE issue 195",
            True,
            eagle,
        ),
        Definition(
            "hass",
            "HASS",
            "accepted + 1, averaged within each question and then over questions, so a short answer weighs as much as "
            "a long one; drafts accepted beyond EOS count.",
            "HASS's acceptance_length.py",
            True,
            hass,
        ),
        Definition(
            "specforge",
            "SpecForge",
            "unweighted mean over requests of completion tokens / verification steps; the token that prefill gave "
            "counts; cut at EOS and at the length limit.",
            "SpecForge's benchmark command at commit a6b6b023",
            False,
            specforge,
        ),
        Definition(
            "deepspec",
            "DeepSpec",
            "committed tokens / rounds, pooled, bonus token counted, cut at EOS: the definition of the column τ.",
            "deepspec/eval/base_evaluator.py of DeepSpec",
            False,
            deepspec,
        ),
    )
}
