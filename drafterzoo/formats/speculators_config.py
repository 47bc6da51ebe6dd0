"""What vllm-project/speculators writes into every config.json: which algorithm, how many tokens, and for which target.

Source: block.md 1.4, eagle.md 2.2. Knows the table `speculators_config`; nothing of any drafter, nor of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.target.target import Target


def algorithm_of(config: Mapping[str, Any]) -> str | None:
    """The algorithm of a folder of speculators'; None of any other folder."""
    found = config.get("speculators_model_type")
    return found if isinstance(found, str) else None


def tokens_of(config: Mapping[str, Any]) -> int | None:
    """How many tokens the proposal that is chosen by default drafts; None where the config does not say."""
    table = config.get("speculators_config")
    methods = table.get("proposal_methods") if isinstance(table, dict) else None
    chosen = table.get("default_proposal_method") if isinstance(table, dict) else None
    for method in methods if isinstance(methods, list) else ():
        if isinstance(method, dict) and chosen in (None, method.get("proposal_type")):
            tokens = method.get("speculative_tokens")
            return tokens if type(tokens) is int else None
    return None


def speculators_config(algorithm: str, tokens: int, target: Target) -> dict[str, Any]:
    """What stands at the top of a config of speculators', its drafter apart."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {"name_or_path": target.name, "architectures": [type(target.model).__name__]}
    return {
        "speculators_model_type": algorithm,
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": verifier,
        },
    }
