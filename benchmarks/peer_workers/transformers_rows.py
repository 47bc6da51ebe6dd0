"""transformers' own rows for `peers.py`: plain greedy decoding, prompt lookup, and its DFlash where there are weights.

Knows transformers; nothing of drafterzoo. It tells no acceptance, so its rows have no τ.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving import Answer, Missing, serve

BLOCKS = "muse_glimmer_assistant"  # the only block drafter that it knows, whoever's weights these are


def load(job: dict[str, Any]) -> tuple[str, dict[str, Answer]]:
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise Missing(f"{package} is not installed in this Python")
    import torch
    import transformers

    torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"], dtype=getattr(torch, job["dtype"])).eval()

    def answering(assistant: Any = None, **more: Any) -> Answer:
        @torch.inference_mode()
        def answer(prompt: Sequence[int], most: int) -> tuple[list[int], None]:
            ids = torch.tensor([list(prompt)])
            config = transformers.GenerationConfig(
                max_new_tokens=most,
                do_sample=False,
                eos_token_id=job["stops"],
                pad_token_id=job["stops"][0],
                **more,
            )
            beside = {} if assistant is None else {"assistant_model": assistant}
            made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **beside)
            return made[0, len(prompt) :].tolist(), None

        return answer

    rows = {
        "plain": answering(),
        f"prompt lookup, {job['nodes']} tokens": answering(prompt_lookup_num_tokens=job["nodes"]),
    }
    head = Path(job["head"])
    if (head / "config.json").is_file() and json.loads((head / "config.json").read_text()).get("model_type") == BLOCKS:
        assistant = transformers.AutoModel.from_pretrained(head, dtype=getattr(torch, job["dtype"])).eval()
        block = assistant.config.block_size
        rows[f"its DFlash, block of {block}"] = answering(assistant, speculation_type="dflash")
    return f"transformers {transformers.__version__}", rows


if __name__ == "__main__":
    serve(load)
