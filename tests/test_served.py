"""Benchmarks of a server: counts against what the server is known to have done, and every way it can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterzoo.budget import Budget
from drafterzoo.cli import main
from drafterzoo.cli.bench import remarks
from drafterzoo.errors import DataError, ServerError, UsageError
from drafterzoo.evaluation.bench_result import BenchResult
from drafterzoo.evaluation.conditions import Settings, check_comparable, conditions_key
from drafterzoo.evaluation.report.definitions import DEFINITIONS
from drafterzoo.evaluation.report.write import report
from drafterzoo.evaluation.results import Record, read
from drafterzoo.evaluation.served import rounds, run, vllm, wire
from drafterzoo.evaluation.served.answers import Answer, Tally
from drafterzoo.evaluation.suites import Prompt, Suite
from tests.fake_server import DEPTH, SCRIPTS, Fake

LIMIT = 10
SUITE = Suite("toy", tuple(Prompt(n, ("ends", "runs")[n == "long"], (f"say {n}",)) for n in SCRIPTS), "sha", "here")
ONE = Suite("one", SUITE.prompts[:1], "sha1", "here")
TALK = Suite("talk", (Prompt("t", "ends", ("say bonus", "now late")),), "sha2", "here")
# by hand, from SCRIPTS: (committed, accepted, walked) of each answer
ROUNDS = {
    "bonus": ((3, 1, 4), (2, 0, 3), (2, 0, 3)),
    "drafted": ((2, 2), (1, 2), (1, 3)),  # cut at EOS: of three accepted drafts two count, and no bonus
    "long": ((4, 4, 4), (3, 3, 3), (3, 3, 3)),  # cut at the length limit: the round counts whole
    "empty": ((), (), ()),
    "late": ((1, 2, 3), (0, 1, 2), (0, 1, 2)),
}
TAU = (8 + 4 + 12 + 6) / 11
MEAN = 1 + (5 + 4 + 9 + 3) / 11


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(run, "LOOKS", 3)
    monkeypatch.delenv(wire.KEY, raising=False)


def measured(fake: Fake, out: Path, suite: Suite = SUITE, **options: Any) -> BenchResult:
    return run.bench(fake.url, suite, out=out, **{"max_new_tokens": LIMIT, "warmup": 0, **options})


def by_prompt(result: BenchResult, cell: str) -> dict[str, Record]:
    return {r.prompt: r for r in read(result.directory).records if r.cell == cell}


VARIETIES = {
    "vllm": Fake("vllm"),
    "vllm, rounds listed": Fake("vllm", detailed=True),
    "sglang": Fake("sglang"),
    "sglang, increments": Fake("sglang", delta=True),
}


@pytest.mark.parametrize("fake", VARIETIES.values(), ids=VARIETIES)
def test_rounds_are_those_of_the_server(fake: Fake, tmp_path: Path) -> None:
    with fake:
        result = measured(fake, tmp_path / "run", name="eagle3")
    (row,) = result.summary["rows"]
    assert (row["cell"], row["drafter"], row["budget"]) == ("eagle3@chain:3", "eagle3", "chain:3")
    assert row["tau"] == TAU and row["rounds"] == 11 and row["tokens"] == 9 + 5 + 10 + 1 + 7
    assert row["accepted_per_round"] == (5 + 3 + 9 + 3) / 11 and row["survival"] == [9 / 11, 7 / 11, 4 / 11]
    assert row["nodes_per_round"] == DEPTH
    for prompt, record in by_prompt(result, "eagle3@chain:3").items():
        assert (record.committed, record.accepted, record.walked) == ROUNDS[prompt]
        assert record.nodes == (DEPTH,) * record.rounds and len(record.ids) == record.length
        assert record.text and record.text.count("w") == record.length and record.prompt_tokens == len(f"say {prompt}")
    counted = result.summary["server"]
    assert counted["counted"] == {"steps": 11, "drafted": 33, "accepted": 21} and counted["asked_again"] == 0
    assert counted["mean_acceptance_length"] == MEAN
    records = list(by_prompt(result, "eagle3@chain:3").values())
    assert DEFINITIONS["vllm"].compute(records) == MEAN  # what vLLM's log would say, from our records
    assert DEFINITIONS["sglang"].compute(records) == 32 / 11


def test_what_a_server_does_not_tell_is_null_and_not_zero(tmp_path: Path) -> None:
    with Fake() as fake:
        result = measured(fake, tmp_path / "run")
    line = json.loads((result.directory / "rounds.jsonl").read_text().splitlines()[0])
    assert {name for name in line if line[name] is None} == {
        "forwards", "rows", "draft_s", "verify_s", "rest_s", "counted",
    }  # fmt: skip
    (row,) = result.summary["rows"]
    assert row["forwards_per_round"] is None and row["rows_per_round"] is None
    assert set(row["milliseconds_per_round"].values()) == set(row["time_shares"].values()) == {None}
    assert row["speedup"]["value"] is None and row["equal_texts"] is None
    assert result.summary["lossless"]["texts"] == 0


@pytest.mark.parametrize("speaks", ["vllm", "sglang"])
def test_a_baseline_gives_the_speed_up_and_the_text_to_equal(speaks: str, tmp_path: Path) -> None:
    with Fake(speaks) as fake, Fake(speaks, drafts=False) as plain:
        result = measured(fake, tmp_path / "run", baseline=plain.url, name="x", repeats=2)
        first = [path for path, *_ in fake.asked if path in ("/generate", "/v1/chat/completions")]
    base, row = result.summary["rows"]
    assert base["cell"] == "none" and base["tau"] == 1 and base["forwards_per_round"] == base["nodes_per_round"] == 0
    assert row["tau"] == TAU and row["speedup"]["value"] > 0 and row["speedup"]["clusters"] == 5
    assert result.summary["lossless"]["texts"] == 15 and result.summary["lossless"]["different"] == 0
    assert row["equal_texts"] == row["texts"] == 10 == len(first)


def test_server_and_baseline_take_turns_prompt_by_prompt(tmp_path: Path) -> None:
    with Fake() as fake, Fake(drafts=False) as plain:
        result = measured(fake, tmp_path / "run", baseline=plain.url)
    order = [(r.prompt, r.cell) for r in read(result.directory).records]
    assert [prompt for prompt, _ in order] == [p.id for p in SUITE for _ in range(2)]
    assert len({cells for cells in zip(*[iter(cell for _, cell in order)] * 2, strict=True)}) == 2


def test_a_text_that_is_not_the_baselines_is_shown(tmp_path: Path) -> None:
    with Fake() as fake, Fake(drafts=False, other=True) as plain:
        result = measured(fake, tmp_path / "run", baseline=plain.url)
    lossless = result.summary["lossless"]
    assert lossless["different"] == 4 and {d["position"] for d in lossless["differences"]} == {3}
    assert all(d["token"] == d["plain_token"] - 1 and d["unit"] == "token" for d in lossless["differences"])


def test_texts_are_compared_where_there_are_no_ids(tmp_path: Path) -> None:
    with Fake() as fake, Fake("openai", drafts=False, other=True) as plain:
        result = measured(fake, tmp_path / "run", baseline=plain.url)
    differences = result.summary["lossless"]["differences"]
    assert len(differences) == 4 and {(d["unit"], d["token"]) for d in differences} == {("character", None)}
    assert {d["position"] for d in differences} <= {len("w10 w10 w10 w"), len("w10 w10 w10 w1")}  # in the fourth word


def test_any_other_server_is_timed_without_rounds(tmp_path: Path) -> None:
    with Fake("openai") as fake:
        result = measured(fake, tmp_path / "run")
        ((_, body, _),) = [asked for asked in fake.asked if asked[1]][:1]
    (row,) = result.summary["rows"]
    assert (row["cell"], row["tau"], row["rounds"], row["budget"]) == ("server@", None, 0, "")
    assert row["tokens"] == 32 and row["tokens_per_second"] > 0
    assert result.summary["server"]["mean_acceptance_length"] is None
    assert set(body) == {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stream", "stream_options"}
    assert read(result.directory).conditions["server"]["rounds"] == ""


def test_a_server_that_does_not_speculate_is_plain_decoding(tmp_path: Path) -> None:
    with Fake(drafts=False) as fake:
        (row,) = measured(fake, tmp_path / "run").summary["rows"]
        assert row["cell"] == "none" and row["tau"] == 1 and row["rounds"] == 32 - 5
        with pytest.raises(UsageError, match="does not speculate, so its row is plain decoding; leave out --baseline"):
            measured(fake, tmp_path / "b", baseline=fake.url)


@pytest.mark.parametrize("speaks", ["vllm", "sglang"])
def test_a_stream_that_holds_two_rounds_together_is_asked_again(speaks: str, tmp_path: Path) -> None:
    with Fake(speaks, merged=2) as fake:
        result = measured(fake, tmp_path / "run")
    assert result.summary["server"]["asked_again"] == 2 and result.summary["rows"][0]["tau"] == TAU
    assert result.summary["server"]["counted"]["steps"] == 11


@pytest.mark.parametrize("speaks", ["vllm", "sglang"])
def test_streams_that_never_agree_are_refused(speaks: str, tmp_path: Path) -> None:
    with Fake(speaks, merged=-1) as fake, pytest.raises(ServerError, match=r"disagree, 3 times over; .*interval 1"):
        measured(fake, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rounds_that_the_server_lists_need_no_stream(tmp_path: Path) -> None:
    with Fake(detailed=True, merged=-1) as fake:
        result = measured(fake, tmp_path / "run")
    assert result.summary["rows"][0]["tau"] == TAU and result.summary["server"]["asked_again"] == 0


def test_somebody_else_at_the_server_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake() as fake:
        counted = fake.count
        monkeypatch.setattr(Fake, "count", lambda self, walked: counted([*walked, 1]))
        with pytest.raises(ServerError, match="let nobody else use the server meanwhile"):
            measured(fake, tmp_path / "run")


def test_prompts_at_once_are_held_against_the_total(tmp_path: Path) -> None:
    with Fake() as fake:
        result = measured(fake, tmp_path / "run", batch_size=3)
    records = by_prompt(result, "server@chain:3")
    assert [r.group for r in records.values()] == [0, 0, 0, 1, 1]
    assert {r.walked for r in records.values()} == {None} and records["bonus"].committed == (3, 1, 4)
    assert records["long"].committed == (4, 4, 1)  # what lies beyond the cut is known of all of them together only
    assert result.summary["server"]["counted"] == {"steps": 11, "drafted": 33, "accepted": 21}
    with Fake(merged=-1) as fake, pytest.raises(ServerError, match="disagree"):
        measured(fake, tmp_path / "b", batch_size=3)


def test_sglang_tells_of_every_answer_also_of_several_at_once(tmp_path: Path) -> None:
    with Fake("sglang") as fake:
        result = measured(fake, tmp_path / "run", batch_size=5)
    assert result.summary["rows"][0]["tau"] == TAU and result.summary["rows"][0]["drafter"] == "drafter"


def test_later_turns_follow_the_plain_answers(tmp_path: Path) -> None:
    with Fake() as fake, Fake(drafts=False) as plain:
        result = measured(fake, tmp_path / "run", TALK, baseline=plain.url, turns="all", system="Be brief.")
        talks = [body["messages"] for path, body, _ in fake.asked if path == "/v1/chat/completions"]
    said = next(r.text for r in read(result.directory).records if r.cell == "none" and r.turn == 0)
    assert talks[0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say bonus"}]
    assert talks[1][2:] == [{"role": "assistant", "content": said}, {"role": "user", "content": "now late"}]


def test_the_request_says_all_that_a_server_would_fill_in(tmp_path: Path) -> None:
    with Fake() as fake, Fake("sglang") as other:
        options = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3, "thinking": False}
        result = measured(fake, tmp_path / "a", ONE, **options)
        measured(other, tmp_path / "b", ONE, **options)
        body = next(body for path, body, _ in fake.asked if path == "/v1/chat/completions")
        tokenize, generate = (
            next(b for path, b, _ in other.asked if path == name) for name in ("/tokenize", "/generate")
        )
    asked = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {key: body[key] for key in (*asked, "seed")} == {**asked, "seed": 3} and body["max_tokens"] == LIMIT
    assert generate["sampling_params"] == {**asked, "sampling_seed": 3, "max_new_tokens": LIMIT}
    assert body["chat_template_kwargs"] == tokenize["chat_template_kwargs"] == {"enable_thinking": False}
    assert not result.summary["lossless"]["checked"]  # above temperature 0 texts agree in distribution alone


def test_conditions_keep_servers_and_processes_apart(tmp_path: Path) -> None:
    with Fake() as fake, Fake("sglang") as other:
        first = read(measured(fake, tmp_path / "a", ONE).directory).conditions
        again = read(measured(fake, tmp_path / "b", ONE, name="another").directory).conditions
        third = read(measured(other, tmp_path / "c", ONE).directory).conditions
    assert first["server"]["kind"] == "vLLM" and first["server"]["version"] == "0.32.0"
    assert first["target"] == {"name": "org/target", "dtype": "dtype not told", "packed": False}
    assert third["target"]["dtype"] == "bfloat16" and third["drafters"]["drafter"]["method"] == "EAGLE3"
    assert first["sampling"]["verification"] == "rejection" and first["prompting"]["template_sha256"] is None
    assert conditions_key(first) == conditions_key(again)
    with pytest.raises(UsageError, match="cannot stand in one table, since they differ in"):
        check_comparable({"vllm": first, "sglang": third})
    with pytest.raises(UsageError, match=r"server\.kind"):
        check_comparable({"vllm": first, "here": {k: v for k, v in first.items() if k != "server"}})


def test_vllm_in_development_mode_tells_what_it_drafts_with(tmp_path: Path) -> None:
    config = "model='t', speculative_config=SpeculativeConfig(method='eagle3', model='org/head', num_spec_tokens=3), "
    with Fake(config=config + "dtype=torch.bfloat16, kv_cache_dtype=auto") as fake:
        found = read(measured(fake, tmp_path / "run", ONE).directory).conditions
    assert found["drafters"] == {
        "head": {"served": True, "method": "eagle3", "model": "org/head", "weights_sha256": None}
    }
    assert found["target"]["dtype"] == "bfloat16"


FAULTS = [
    ("failed", "failed (500 Internal Server Error); look at the server's log"),
    (
        "parameter",
        "does not take the request (400 Bad Request: top_k is not known here); change or leave out what it names",
    ),
    ("model", "The model `x` does not exist; name one of the models it lists under /v1/models with --target"),
    ("cut", "the stream of an answer ended before it was done"),
    ("short", "the stream of an answer ended before it was done"),
    ("reset", "broke off the connection in the middle of an answer (Connection reset by peer)"),
    ("garbage", "its stream holds '{broken', which is not JSON"),
    ("strange", "its stream is not OpenAI's"),
    ("reported", "gave up in the middle of an answer: the engine died"),
    ("restart", "its counters went back or are gone, so it was started anew"),
    ("silent", "said nothing for 0.2 s"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_server_that_fails_is_one_sentence_and_what_there_is_stays(
    fault: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "silent":
        monkeypatch.setattr(wire, "SECONDS", 0.2)
    with Fake(fault=fault, after=2) as fake, pytest.raises(ServerError) as caught:
        measured(fake, tmp_path / "run")
    message = str(caught.value)
    assert said in message and message.startswith("127.0.0.1:") and message.endswith(".") and "\n" not in message
    found = read(tmp_path / "run")
    assert [r.prompt for r in found.records] == ["bonus", "drafted"]
    assert found.summary is not None and not found.summary["complete"] and found.summary["prompts_done"] == 2


@pytest.mark.parametrize("fault", ["cut", "garbage", "strange", "reported"])
def test_sglangs_stream_fails_alike(fault: str, tmp_path: Path) -> None:
    with Fake("sglang", fault=fault) as fake, pytest.raises(ServerError, match=r"127\.0\.0\.1:\d+"):
        measured(fake, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_keeps_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake() as fake:
        ask = vllm.VLLM.ask

        def interrupted(self: vllm.VLLM, *args: Any) -> Answer:
            if fake.answers == 3:
                raise KeyboardInterrupt
            return ask(self, *args)

        monkeypatch.setattr(vllm.VLLM, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measured(fake, tmp_path / "run")
    found = read(tmp_path / "run")
    assert found.summary is not None and found.summary["prompts_done"] == 3 and not found.summary["complete"]


def test_a_key_is_sent_and_never_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake(key="s3cret") as fake:
        with pytest.raises(ServerError, match=r"asks for a key, which is missing; set OPENAI_API_KEY \(401"):
            measured(fake, tmp_path / "run", ONE)
        monkeypatch.setenv(wire.KEY, "wr0ng")
        with pytest.raises(ServerError, match="is not the one it wants; set another in OPENAI_API_KEY") as caught:
            measured(fake, tmp_path / "run", ONE)
        assert "wr0ng" not in str(caught.value)
        monkeypatch.setenv(wire.KEY, "s3cret")
        result = measured(fake, tmp_path / "run", ONE)
    assert "s3cret" not in "".join(path.read_text() for path in result.directory.iterdir())


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("localhost:8000", UsageError, "is no address of a server; type one like http://localhost:8000"),
        ("http://me:pass@host", UsageError, "without a name or key"),
        ("http://host:port", UsageError, "is no address"),
        ("http://127.0.0.1:1", ServerError, "cannot be reached (Connection refused); start the server, or mend"),
    ],
)
def test_addresses_that_lead_nowhere(url: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        run.bench(url, ONE, out=tmp_path / "run")
    assert said in str(caught.value) and not (tmp_path / "run").exists()


def test_what_is_no_such_server_is_told(tmp_path: Path) -> None:
    with Fake(hidden=("/v1/models",)) as fake, pytest.raises(ServerError, match="is no OpenAI-compatible server"):
        measured(fake, tmp_path / "run")
    with (
        Fake() as fake,
        pytest.raises(ServerError, match=r"serves no model 'other'; name one of its own .* org/target"),
    ):
        measured(fake, tmp_path / "run", target="other")
    with Fake() as fake, Fake(drafts=False, model="b") as plain, pytest.raises(UsageError, match="of one target"):
        measured(fake, tmp_path / "run", baseline=plain.url)
    with Fake() as fake, pytest.raises(UsageError, match="speculates, too"):
        measured(fake, tmp_path / "run", baseline=fake.url)
    with Fake() as fake, pytest.raises(UsageError, match="cannot be what a drafter is called"):
        measured(fake, tmp_path / "run", name="none")


def test_the_address_of_openais_clients_will_do(tmp_path: Path) -> None:
    with Fake() as fake:
        assert run.bench(f"{fake.url}/v1/", ONE, out=tmp_path / "run", max_new_tokens=LIMIT).summary["complete"]


@pytest.mark.parametrize("lacking", [{"hidden": ("/tokenize",)}, {"old": ("/tokenize",)}], ids=["missing", "older"])
def test_an_sglang_that_renders_no_conversation_is_asked_by_chat(lacking: dict[str, Any], tmp_path: Path) -> None:
    with Fake("sglang", **lacking) as fake:
        (row,) = measured(fake, tmp_path / "run").summary["rows"]
    assert (row["cell"], row["tau"], row["tokens"]) == ("drafter@chain:3", None, 32)


def test_equal_texts_without_ids_are_said_to_be_equal_by_characters(tmp_path: Path) -> None:
    with Fake() as fake, Fake("openai", drafts=False) as plain:
        summary = measured(fake, tmp_path / "run", baseline=plain.url).summary
    assert summary["lossless"]["unit"] == "character" and summary["lossless"]["different"] == 0
    assert remarks(summary)[0] == "texts: all 5 equal plain decoding's, character for character"


def test_vllm_without_ids_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.VLLM, "_take", lambda self, event, found: TAKE(self, without_ids(event), found))
    with Fake() as fake, pytest.raises(ServerError, match="streams no token ids"):
        measured(fake, tmp_path / "run")


TAKE = vllm.VLLM._take


def without_ids(event: dict[str, Any]) -> dict[str, Any]:
    for choice in event["choices"]:
        choice.pop("token_ids", None)
    return event


@pytest.mark.parametrize(
    ("fake", "beside", "tau"),
    [
        (Fake(), True, "2.73"),
        (Fake("openai"), True, "-"),
        (Fake("openai"), False, "-"),
        (Fake(drafts=False), False, "1.00"),
    ],
    ids=["baseline", "no rounds, baseline", "no rounds", "plain alone"],
)
def test_a_report_can_be_made_of_it(fake: Fake, beside: bool, tau: str, tmp_path: Path) -> None:
    with fake, Fake(drafts=False) as plain:
        result = measured(fake, tmp_path / "run", baseline=plain.url if beside else None)
    made = report(tmp_path / "run", definition="sglang")
    page = made.page.read_text()
    assert "org/target" in page and "its machine not told" in page and ("2.73" in page) == (tau == "2.73")
    (section,) = made.summary["sections"]
    assert [row["tau"] for row in section["rows"]] == [row["tau"] for row in result.summary["rows"]]
    lines = result.markdown().splitlines()
    assert f"| {tau} |" in next(line for line in reversed(lines[:8]) if line.startswith("| "))


# ------------------------------------------------------------------------------------------------------- command line


def test_the_command_line_shows_tables_and_where_rounds_are_from(tmp_path: Path, capsys: Any) -> None:
    suite = tmp_path / "s.jsonl"
    suite.write_text("".join(json.dumps({"prompt": f"say {name}"}) + "\n" for name in SCRIPTS))
    words = ["bench", "--suite", str(suite), "-n", str(LIMIT), "--name", "eagle3", "--warmup", "0"]
    with Fake(merged=2) as fake, Fake(drafts=False) as plain:
        assert main([*words, "--server", fake.url, "--baseline", plain.url, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "rounds: the stream, equal to the server's counters" in said.out and "2.73" in said.out
    assert "mean acceptance length: 2.91" in said.out and "texts: all 5 equal" in said.out
    assert "asked again, since stream and count disagreed: 2 times" in said.out and "MB resident" not in said.out
    assert f"vLLM 0.32.0 at {fake.url.removeprefix('http://')}, org/target, drafts chain:3 as eagle3" in said.err
    with Fake("openai") as fake:
        assert main([*words, "--server", fake.url, "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr()
    assert "acceptance not reported" in said.out and "there is no --baseline" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-d", "lookup"], "-d is not for --server, which has its own drafter, budget and rule; leave it out"),
        (["--budget", "chain:3", "--threads", "1"], "--budget, --threads are not for --server"),
        (["--verification", "match"], "--verification is not for"),
        (["--uncoupled", "--exclude", "lookup"], "--uncoupled, --exclude are not for"),
    ],
)
def test_options_of_this_process_are_refused(words: list[str], said: str, capsys: Any) -> None:
    assert main(["bench", "--server", "http://127.0.0.1:1", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err and told.err.count("\n") == 1 and not told.out


@pytest.mark.parametrize("flag", ["--baseline", "--name"])
def test_options_of_a_server_need_one(flag: str, capsys: Any) -> None:
    assert main(["bench", flag, "x"]) == 2
    assert f"{flag} goes with --server, which is missing" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- rounds against the count


def answer(sizes: list[int], stopped: bool) -> Answer:
    ids = tuple(range(sum(sizes)))
    return Answer("", "", ids, len(ids), tuple(sizes), 1, stopped, 0.0, 0.0, 0.0)


def counted(walked: list[int], depth: int) -> Tally:
    histogram = tuple(walked.count(number) for number in range(depth + 1))
    return Tally(len(walked), sum(walked), depth * len(walked), histogram)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 4), st.booleans())
def test_any_rounds_are_found_again_from_stream_and_count(walked: list[int], cut: int, stopped: bool) -> None:
    sizes = [accepted + 1 for accepted in walked]
    sizes[-1] = max(sizes[-1] - cut, 1)
    found = rounds.alone(answer([1, *sizes], stopped), counted(walked, 4), Budget.chain(4))
    assert found is not None
    assert found.walked == tuple(walked) and found.emitted == tuple(sizes) and found.nodes == (4,) * len(walked)
    assert found.committed[-1] == (sizes[-1] if stopped else walked[-1] + 1)
    assert found.accepted[-1] == (min(walked[-1], sizes[-1]) if stopped else walked[-1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.integers(0, 4), st.integers(0, 5), st.booleans())
def test_two_rounds_in_one_event_never_pass(walked: list[int], cut: int, place: int, stopped: bool) -> None:
    sizes = [1, *(accepted + 1 for accepted in walked)]
    sizes[-1] = max(sizes[-1] - cut, 1)
    place %= len(sizes) - 1
    sizes[place : place + 2] = [sizes[place] + sizes[place + 1]]
    assert rounds.alone(answer(sizes, stopped), counted(walked, 4), Budget.chain(4)) is None
    assert rounds.together([answer(sizes, stopped)], counted(walked, 4), Budget.chain(4)) is None


def test_rounds_without_a_draft_are_in_the_stream_and_in_no_count() -> None:
    """As of n-gram lookup: which of the rounds of one token had a draft is not told."""
    found = rounds.alone(answer([1, 1, 3, 1], True), Tally(2, 2, 5, (1, 0, 1, 0)), Budget.chain(3))
    assert found is not None and found.committed == (1, 3, 1) and found.nodes is None
    assert DEFINITIONS["vllm"].compute([record(found)]) is None


def record(columns: rounds.Columns) -> Record:
    named = {name: getattr(columns, name) for name in ("committed", "emitted", "accepted", "walked", "nodes")}
    untold = dict.fromkeys(("forwards", "rows", "draft_s", "verify_s", "rest_s"))
    return Record(
        cell="c", drafter="d", budget="chain:3", prompt="p", category="c", turn=0, repeat=0, group=-1, prompt_tokens=1,
        tokens=range(1 + sum(columns.emitted)), **named, **untold, prefill_s=0.1, decode_s=0.1, text="x",
    )  # fmt: skip


def test_a_line_of_a_server_without_a_count_is_refused(tmp_path: Path) -> None:
    with Fake("openai") as fake:
        path = measured(fake, tmp_path / "run", ONE).directory / "rounds.jsonl"
    path.write_text(path.read_text().replace('"counted":9', '"counted":null'))
    with pytest.raises(DataError, match="1: tokens is null, and counted does not say how many there were"):
        read(tmp_path / "run")


def test_counters_are_summed_over_engines_and_must_be_numbers() -> None:
    lines = [
        *(f'vllm:spec_decode_num_drafts_total{{engine="{n}"}} 5.0' for n in range(2)),
        *(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{n}",position="0"}} 3.0' for n in range(2)),
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 6.0',
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 10.0',
    ]
    assert vllm.counters("\n".join(lines), "here") == Tally(10, 6, 10, (4, 6))
    assert vllm.counters("vllm:num_requests_running 1.0\n", "here") is None
    with pytest.raises(ServerError, match="here: /metrics counts 'many', expected a number"):
        vllm.counters("vllm:spec_decode_num_drafts_total many\n", "here")


def test_settings_are_checked_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="top_p is 0"):
        run.bench("http://127.0.0.1:1", ONE, top_p=0.0, out=tmp_path / "run")
    assert Settings(verification="rejection", coupled=False).same_text
