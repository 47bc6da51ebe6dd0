"""economize's rows for `peers.py`: plain decoding, and its EAGLE-3 chain on the weights that drafterzoo exported.

Knows economize; nothing of drafterzoo. Its EAGLE-3 is the paper's, without the two norms of EAGLE-3.1: it refuses a
checkpoint that has them. They are added here, on the loaded head, so that both engines draft with one network.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving import Answer, Missing, serve


def load(job: dict[str, Any]) -> tuple[str, dict[str, Answer]]:
    if importlib.util.find_spec("economize") is None:
        raise Missing(
            "it is not installed in this Python (make an environment with `pip install economize`, and name its "
            "interpreter: --python economize=PATH)"
        )
    import economize
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job["threads"])
    base = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=getattr(torch, job["dtype"])).eval()
    model = economize.load(base, job["head"], format="eagle3", check_teacher=False).eval()
    added = add_norms(model.drafting_technique, Path(job["head"]))

    def answering(cycle: int) -> Answer:
        settings = economize.DecodeConfig(cycle_length=cycle)

        @torch.inference_mode()
        def answer(prompt: Sequence[int], most: int) -> tuple[list[int], int]:
            made = model.decode(torch.tensor(list(prompt)), most, decoding=settings, stop=job["stops"])
            return made.tokens.tolist(), made.cost.count("exact") - 1

        return answer

    # a cycle is the exact token and the drafts after it
    rows = {"plain": answering(1), f"eagle3{added}, chain of {job['nodes']}": answering(job["nodes"] + 1)}
    return f"economize {economize.__version__}", rows


def add_norms(head: Any, folder: Path) -> str:
    """Give a loaded EAGLE-3 head the norms of 3.1 that the checkpoint asks for; returns what to call them."""
    import torch
    from safetensors.torch import load_file

    flags = json.loads((folder / "config.json").read_text())["drafterzoo"]
    norms = load_file(folder / "norms.safetensors")
    if flags["fc_norm"]:
        eps = head.layer.hidden_norm.eps

        def fuse(states: Sequence[torch.Tensor]) -> torch.Tensor:
            normed = (
                torch.nn.functional.rms_norm(state.to(head.dtype), state.shape[-1:], norms[f"fc_norm.{i}.weight"], eps)
                for i, state in enumerate(states)
            )
            return head.fc(torch.cat(list(normed), -1))

        head.fuse = fuse
    if flags["norm_output"]:
        norm, finish = head.norm, head.layer.finish
        head.norm = torch.nn.Identity()  # applied once, to what recurs and to what the head reads alike
        head.layer.finish = lambda residual, attended: norm(finish(residual, attended))
    return " with the norms of 3.1" if flags["fc_norm"] or flags["norm_output"] else ""


if __name__ == "__main__":
    serve(load)
