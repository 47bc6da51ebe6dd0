"""drafterzoo's rows for `peers.py`, and what only it can do: encode prompts, export its drafter, explain a difference.

Knows drafterzoo; nothing of the peers but the layouts that they read: the EAGLE-3 of economize (and others), and the
block drafter of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from serving import Answer, serve

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.composition import innermost
from drafterzoo.drafters.base import Drafter
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.generation import generate


class Bench:
    """The loaded target and drafters, and the commands that `peers.py` may send."""

    def load(self, job: dict[str, Any]) -> tuple[str, dict[str, Answer]]:
        torch.set_num_threads(job["threads"])
        self.drafter = drafterzoo.load(job["drafter"], job["target"])
        self.target = self.drafter.target
        lookup = drafterzoo.load("lookup", self.target)
        chain, tree = Budget.chain(job["nodes"]), Budget.tree(job["tree"])
        rows = {
            "plain": self.answering("none", None),
            f"lookup, {chain}": self.answering(lookup, chain),
            f"{self.drafter.spec}, {chain}": self.answering(self.drafter, chain),
            f"{self.drafter.spec}, tree:{tree.nodes}": self.answering(self.drafter, tree),
        }
        return f"drafterzoo {drafterzoo.__version__}", rows

    def answering(self, drafter: Drafter | str, budget: Budget | None) -> Answer:
        def answer(prompt: Sequence[int], most: int) -> tuple[list[int], int]:
            made = generate(drafter, list(prompt), target=self.target, budget=budget, max_new_tokens=most)
            return made.tokens[0], len(made.rounds[0])

        return answer

    def prompts(self, request: dict[str, Any]) -> dict[str, Any]:
        """Token ids of a suite's first turns, and what the other engines must be told of the target."""
        suite = load_suite(request["suite"], limit=request["limit"], data_dir=request["data_dir"])
        talks = [[{"role": "user", "content": prompt.turns[0]}] for prompt in suite]
        return {
            "prompts": [self.target.encode_chat(talk) for talk in talks],
            "source": suite.source,
            "folder": self.target.model.config._name_or_path,
            "stops": list(self.target.eos_token_ids),
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "packed": self.target.packed,
        }

    def gap(self, request: dict[str, Any]) -> dict[str, Any]:
        """The target's logit of token `mine` over that of `theirs` after a text."""
        text = request["text"]
        logits = self.target.prefill(self.target.open_cache(1, len(text), 1), [text], ()).logits
        assert logits is not None, "prefill gives the last token's logits"
        return {"gap": float(logits[0, -1, request["mine"]] - logits[0, -1, request["theirs"]])}

    def export(self, request: dict[str, Any]) -> dict[str, Any]:
        base, folder = innermost(self.drafter), Path(request["folder"])
        if base.name == "dflash":
            export_dflash(base, folder)
            return {"for": "transformers"}
        export_eagle3(self.drafter, folder)
        return {"for": "economize"}


def export_eagle3(drafter: Any, folder: Path) -> None:
    """Write an EAGLE-3 drafter of one layer in its authors' layout: `midlayer.*`, `d2t` as offsets, a head of its own.

    The norms of EAGLE-3.1 have no place in that layout; they go into a file beside it, `norms.safetensors`.
    """
    config, weights = drafter.config, drafter.tensors()
    if config.num_layers != 1 or config.norm_before_fc or config.qk_norm or config.embedding != "borrowed":
        raise ValueError("this layout holds one layer without query and key norms, on the target's own embedding")
    kept = {key.replace("layers.0.", "midlayer."): value for key, value in weights.items() if "fc_norm" not in key}
    kept["lm_head.weight"] = drafter.head_matrix().detach().contiguous()
    norms = {key: value for key, value in weights.items() if "fc_norm" in key}
    for name, tensors in (("model", kept), ("norms", norms)):
        floats = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
        save_file(floats, folder / f"{name}.safetensors")
    named = ("draft_vocab_size", "vocab_size", "hidden_size", "intermediate_size", "head_dim", "rms_norm_eps")
    values = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **{name: getattr(config, name) for name in (*named, "rope_theta", "attention_bias", "norm_before_residual")},
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "num_hidden_layers": 1,
        # outputs of blocks counted from 1: the same numbers as boundaries
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(config.taps)},
        "drafterzoo": {"fc_norm": config.fc_norm, "norm_output": config.norm_output},
    }
    (folder / "config.json").write_text(json.dumps(values, indent=2))


def export_dflash(drafter: Any, folder: Path) -> None:
    """Write a DFlash drafter in the layout of transformers' own, whose block attends both ways, on the target's head.

    Where the drafter's vocabulary is smaller than the target's, transformers may propose what it cannot.
    """
    config = drafter.config
    plain = config.layout == "same_position" and not config.sliding_layers and not config.causal
    borrowed = config.embedding == config.head == "borrowed" and config.mask_token_id is not None
    if not (plain and borrowed and config.qk_norm and not config.attention_bias):
        raise ValueError(
            "transformers' DFlash has query and key norms, full attention both ways, the target's embedding and head, "
            "and layout same_position"
        )
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    kept = {renamed.get(key, key): value for key, value in drafter.tensors().items() if value.is_floating_point()}
    save_file({key: value.float() for key, value in kept.items()}, folder / "model.safetensors", {"format": "pt"})
    named = ("hidden_size", "intermediate_size", "head_dim", "rms_norm_eps", "block_size", "mask_token_id")
    values = {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        **{name: getattr(config, name) for name in named},
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "layer_types": ["full_attention"] * config.num_layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "target_layer_ids": [boundary - 1 for boundary in config.taps],
    }
    (folder / "config.json").write_text(json.dumps(values, indent=2))


if __name__ == "__main__":
    bench = Bench()
    serve(bench.load, {"prompts": bench.prompts, "gap": bench.gap, "export": bench.export})
