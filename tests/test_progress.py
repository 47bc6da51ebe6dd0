"""Progress where nobody watches a bar: few lines, each of which says what is at work and how long it will take."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from drafterzoo import progress as module
from drafterzoo.progress import duration, progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told: clock.now."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_line_every_thirty_seconds_and_one_at_the_end(clock, capsys):
    with progress("starter: 4 prompts", 40, "answers") as bar:
        for number in range(40):
            bar.remark(f"lookup chain:4 on starter, prompt {number + 1} of 40")
            clock.now += 4
            bar(1)
    title, *several, end = lines(capsys)
    assert title == "starter: 4 prompts" and end == "40 of 40 answers in 3 min"
    assert len(several) == 160 // 32
    assert several[0] == "8 of 40 answers, 0.25 answers/s, 2 min left; lookup chain:4 on starter, prompt 8 of 40"


def test_what_is_there_already_makes_nothing_look_faster(clock, capsys):
    with progress("again", 100, "answers", done=90) as bar:
        clock.now += 40
        bar(2)
    _, one, end = lines(capsys)
    assert one == "92 of 100 answers, 0.05 answers/s, 3 min left"
    assert end == "92 of 100 answers in 40 s"


def test_a_slow_answer_gives_signs_of_life(monkeypatch, capsys):
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.0)
    with progress("slow", 4, "answers", done=1) as bar:
        bar.remark("lookup chain:4 on starter, prompt 2 of 4")
        time.sleep(0.4)  # nothing is reported
    _, *several, end = lines(capsys)
    assert several[-1] == "1 of 4 answers, 0 s into the next; lookup chain:4 on starter, prompt 2 of 4"
    assert len(several) >= 3 and end == "1 of 4 answers in 0 s"


def test_how_long_a_slow_answer_is_at_work(clock):
    bar = module.Bar(40, "answers", 12)
    clock.now += 29
    assert bar.said() == "12 of 40 answers"
    clock.now += 66
    assert bar.said() == "12 of 40 answers, 2 min into the next"
    bar(1)
    assert "into the next" not in bar.said()


def test_the_end_is_told_when_it_is_stopped_too(clock, capsys):
    with pytest.raises(KeyboardInterrupt), progress("some", 4, "answers") as bar:
        bar(3)
        raise KeyboardInterrupt
    assert lines(capsys)[-1] == "3 of 4 answers in 0 s"


def test_a_bar_and_its_remark_fit_80_columns(monkeypatch):
    monkeypatch.setattr(module, "console", Console(width=80, force_terminal=True, stderr=True))
    plain = Console(width=80, file=io.StringIO())
    with progress("starter: 40 prompts", 200, "answers") as bar:
        bar.remark("eagle3.1+pr(reconsider=4) nodes=16,depth=6,grow=3,offer=6 on starter, prompt 3 of 40, turn 2")
        bar(120)
        plain.print(*bar._shown.get_renderables(), sep="\n")
    text = plain.file.getvalue()
    assert "120/200" in text and "eagle3.1+pr(reconsider=4)" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2.0 h")])
def test_durations(seconds, said):
    assert duration(seconds) == said
