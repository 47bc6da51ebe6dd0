"""A server without a model: answers that are written down, streamed round by round as vLLM and SGLang do it.

Standard library only. What a round accepts is written down too, so that every count is known beforehand; what goes
wrong on the way is asked for by name.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs

DEPTH = 3  # drafts a round


@attrs.frozen
class Script:
    """An answer: what each round accepts, and how many tokens there are until EOS, the first and EOS itself included.

    length: None where only the limit ends it.
    """

    walked: tuple[int, ...]
    length: int | None

    def sizes(self, limit: int) -> tuple[list[int], bool]:
        """The tokens of every step, prefill's first, and whether EOS ended them."""
        end = limit if self.length is None else min(self.length, limit)
        sizes, left = [1], end - 1
        for accepted in self.walked:
            if left:
                sizes.append(min(accepted + 1, left))
                left -= sizes[-1]
        assert not left, "the script is too short"
        return sizes, self.length is not None and self.length <= limit


SCRIPTS = {
    "bonus": Script((2, 0, 3), 9),  # EOS is what the target added to the last round
    "drafted": Script((1, 3), 5),  # EOS is the second draft of a round that accepted three
    "long": Script((3,) * 50, None),  # the length limit cuts
    "empty": Script((), 1),  # prefill gives EOS
    "late": Script((0, 1, 2), 7),
}


@attrs.define(eq=False)
class Fake:
    """A server on loopback. A context manager.

    speaks: "vllm", "sglang" or "openai". drafts: whether it speculates. merged: how many streams hold two rounds
    together (-1: all). fault: the name of what goes wrong, from answer number `after` on. other: whether its texts
    differ. key: what it asks for. hidden: addresses it does not have; old: those that refuse what is posted. delta:
    whether SGLang streams what is new alone. detailed, config: whether vLLM lists the steps of every answer, and what
    it tells of itself in development mode. asked: (path, body, headers) of everything.
    """

    speaks: str = "vllm"
    drafts: bool = True
    merged: int = 0
    fault: str = ""
    after: int = 0
    other: bool = False
    key: str = ""
    hidden: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    delta: bool = False
    detailed: bool = False
    config: str = ""
    model: str = "org/target"
    asked: list[tuple[str, Any, dict[str, str]]] = attrs.field(factory=list, init=False)
    answers: int = attrs.field(default=0, init=False)
    steps: int = attrs.field(default=100, init=False)  # somebody was here before
    accepted: int = attrs.field(default=70, init=False)
    positions: list[int] = attrs.field(factory=lambda: [40, 20, 10], init=False)
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    http: _Http = attrs.field(init=False)

    def __enter__(self) -> Fake:
        handler = type("Handler", (_Handler,), {"fake": self})
        self.http = _Http(("127.0.0.1", 0), handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def count(self, walked: list[int]) -> None:
        with self.lock:
            self.steps += len(walked)
            self.accepted += sum(walked)
            for depth in range(DEPTH):
                self.positions[depth] += sum(accepted > depth for accepted in walked)

    def metrics(self) -> str:
        lines = ["# HELP vllm:num_requests_running Running.", 'vllm:num_requests_running{engine="0"} 0.0']
        if self.drafts:
            labels = 'engine="0",model_name="a}b"'
            name = "vllm:spec_decode_num"
            lines += [
                f"{name}_drafts_total{{{labels}}} {float(self.steps)}",
                f"{name}_drafts_created{{{labels}}} 1.7e9",
                f"{name}_draft_tokens_total{{{labels}}} {float(self.steps * DEPTH)}",
                f"{name}_accepted_tokens_total{{{labels}}} {float(self.accepted)}",
            ]
            lines += [
                f'{name}_accepted_tokens_per_pos_total{{{labels},position="{depth}"}} {float(reached)}'
                for depth, reached in enumerate(self.positions)
            ]
        return "\n".join(lines) + "\n"

    def planned(self, question: str, limit: int) -> tuple[list[int], list[list[int]], list[int], bool]:
        """Ids, ids by event, what rounds accepted, and whether EOS ended the answer."""
        script = SCRIPTS[question.split()[-1]]
        sizes, stopped = script.sizes(limit)
        ids = [10 + (7 * place + len(question)) % 80 for place in range(sum(sizes))]
        if self.other and len(ids) > 3:
            ids[3] += 1
        walked = list(script.walked[: len(sizes) - 1])
        steps = sizes if self.drafts else [1] * len(ids)
        events, place = [], 0
        for size in steps:
            events.append(ids[place : place + size])
            place += size
        with self.lock:
            merge, self.merged = self.merged != 0 and len(events) > 2, max(self.merged - 1, -1) if self.merged else 0
        if merge:
            events[1:3] = [events[1] + events[2]]
        return ids, events, walked if self.drafts else [], stopped


def words(ids: list[int]) -> str:
    return "".join(f"w{token} " for token in ids)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A connection that was broken off, here or there, is what some tests are about."""
        error = sys.exception()
        if not isinstance(error, OSError | ValueError):
            raise error or RuntimeError("handle_error without an error")


class _Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._meet(None)

    def do_POST(self) -> None:
        self._meet(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _meet(self, body: Any) -> None:
        fake = self.fake
        fake.asked.append((self.path, body, dict(self.headers)))
        if self.path.startswith("/v1") and fake.key and self.headers.get("Authorization") != f"Bearer {fake.key}":
            return self._send(401, {"error": f"key {self.headers.get('Authorization')} is wrong"})
        if self.path in fake.hidden:
            return self._send(404, {"detail": "Not Found"})
        if self.path in fake.old:
            return self._send(422, {"detail": [{"msg": "Field required", "loc": ["body", "prompt"]}]})
        if self.path == "/v1/models":
            return self._send(200, {"object": "list", "data": [{"id": fake.model, "owned_by": fake.speaks}]})
        if self.path == "/v1/chat/completions" and body is not None:
            return self._answer(body["messages"][-1]["content"], body["max_tokens"], body)
        if fake.speaks == "vllm":
            if self.path == "/version":
                return self._send(200, {"version": "0.32.0"})
            if self.path == "/server_info" and fake.config:
                return self._send(200, {"vllm_config": fake.config})
            if self.path == "/metrics":
                return self._send(200, fake.metrics())
        if fake.speaks == "sglang":
            if self.path == "/server_info":
                return self._send(200, self._info())
            if self.path == "/tokenize":
                return self._send(200, {"tokens": [ord(c) for c in body["messages"][-1]["content"]], "count": 1})
            if self.path == "/generate":
                question = "".join(map(chr, body["input_ids"]))
                return self._answer(question, body["sampling_params"]["max_new_tokens"], body)
        return self._send(404, {"detail": "Not Found"})

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"model_path": self.fake.model, "version": "0.6.1", "dtype": "bfloat16"}
        if self.fake.drafts:
            info |= {
                "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "org/drafter",
                "speculative_num_steps": DEPTH, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": DEPTH + 1,
            }  # fmt: skip
        return info

    def _answer(self, question: str, limit: int, body: Any) -> None:
        fake = self.fake
        with fake.lock:
            fake.answers += 1
            fault = fake.fault if fake.answers > fake.after else ""
        if fault == "parameter":
            return self._send(400, {"error": {"message": "top_k is not known here.", "code": 400}})
        if fault == "model":
            return self._send(404, {"error": {"message": "The model `x` does not exist.", "code": 404}})
        if fault == "failed":
            return self._send(500, "out of memory")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if fault == "silent":
            time.sleep(0.5)
        ids, events, walked, stopped = fake.planned(question, limit)
        stream = self._generate if self.path == "/generate" else self._chat
        for number, event in enumerate(stream(ids, events, walked, stopped, len(question))):
            if number == 1 and fault:
                if fault == "cut":
                    return None
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return self.connection.close()
                if fault == "garbage":
                    event = "{broken"
                if fault == "strange":
                    event = {"choices": [3], "meta_info": {}}
                if fault == "reported":
                    event = {"error": {"message": "the engine died", "code": 500}}
                if fault == "short":
                    break
            self._chunk(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        if fault == "restart":
            fake.steps, fake.accepted, fake.positions = 0, 0, [0, 0, 0]
        fake.count(walked)
        if fault != "short":
            self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _chat(
        self, ids: list[int], events: list[list[int]], walked: list[int], stopped: bool, asked: int
    ) -> Iterator[Any]:
        vllm = self.fake.speaks == "vllm"
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        for number, event in enumerate(events):
            last = number == len(events) - 1
            finish = ("stop" if stopped else "length") if last else None
            choice = {"index": 0, "delta": {"content": words(event)}, "finish_reason": finish}
            yield {"choices": [choice | ({"token_ids": event} if vllm else {})]}
        end: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": asked, "completion_tokens": len(ids)}}
        if vllm and self.fake.detailed and self.fake.drafts:
            histogram = [walked.count(number) for number in range(DEPTH + 1)]
            end["metrics"] = {"speculative_decoding": {
                "num_spec_steps": len(walked), "num_accepted_draft_tokens": sum(walked),
                "num_draft_tokens": DEPTH * len(walked), "acceptance_histogram": histogram,
                "per_step_accepted": walked, "per_step_drafted": [DEPTH] * len(walked),
            }}  # fmt: skip
        yield end

    def _generate(
        self, ids: list[int], events: list[list[int]], walked: list[int], stopped: bool, asked: int
    ) -> Iterator[Any]:
        done: list[int] = []
        for number, event in enumerate(events):
            done = done + event
            meta: dict[str, Any] = {"prompt_tokens": asked, "completion_tokens": len(done), "finish_reason": None}
            if number == len(events) - 1:
                meta["finish_reason"] = {"type": "stop" if stopped else "length"}
                if self.fake.drafts:
                    meta |= {
                        "spec_verify_ct": len(walked), "spec_num_correct_drafts": sum(walked),
                        "spec_num_proposed_drafts": DEPTH * len(walked),
                        "spec_correct_drafts_histogram": [walked.count(number) for number in range(DEPTH + 1)],
                    }  # fmt: skip
            shown = event if self.fake.delta else done
            yield {"text": words(shown), "output_ids": shown, "meta_info": meta}

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def _send(self, status: int, said: Any) -> None:
        content = (said if isinstance(said, str) else json.dumps(said)).encode()
        head = f"HTTP/1.1 {status} {self.responses[status][0]}\r\nContent-Length: {len(content)}\r\nConnection: close"
        self.wfile.write(head.encode() + b"\r\n\r\n" + content)
        self.close_connection = True
