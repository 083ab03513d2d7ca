"""Phases of a step: their seconds, and the trace."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from training.profile_steps import WARM_UP, Phases


class Clock:
    """time.perf_counter that goes on only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: 1000.0 + self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def one_step(phases: Phases, clock: Clock, step: int) -> dict[str, float]:
    with phases("data"):
        clock.now += 1
    with phases("sums"):
        clock.now += 2
        with phases("communication"):
            clock.now += 4
    clock.now += 8
    return phases.take(step)


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def test_seconds_by_eye(tmp_path: Path, clock: Clock) -> None:
    phases = Phases(tmp_path)
    for step in (1, 2, 3):
        assert one_step(phases, clock, step) == {"data": 1, "sums": 6, "communication": 4}
    assert phases.take(4) == {}
    phases.close()
    assert list(tmp_path.iterdir()) == []  # nothing was asked for


def test_a_phase_that_comes_twice_or_fails_counts(tmp_path: Path, clock: Clock) -> None:
    phases = Phases(tmp_path)
    with phases("data"):
        clock.now += 1
    with pytest.raises(ZeroDivisionError), phases("data"):
        clock.now += 2
        raise ZeroDivisionError
    assert phases.take(1) == {"data": 3}


def test_a_trace_by_eye(tmp_path: Path, clock: Clock) -> None:
    phases = Phases(tmp_path, rank=0, steps=1)
    for step in (1, 2, 3, 4):
        one_step(phases, clock, step)
        assert (tmp_path / "trace.json").exists() == (step >= 3)
    phases.close()
    names, thread, *found = events(tmp_path / "trace.json")
    assert names == {
        **{"ph": "M", "pid": 0, "tid": 0, "name": "process_name"},
        "args": {"name": "rank 0"},
    }
    assert thread["args"] == {"name": "training"}
    # Step 3 begins at second 130 of the counter, which is 1130 of the clock.
    expected = {"data": (0, 1), "communication": (3, 4), "sums": (1, 6), "step 3": (0, 15)}
    assert [event["name"] for event in found] == list(expected)
    for event, (first, lasts) in zip(found, expected.values(), strict=True):
        assert event.keys() == {"name", "ph", "pid", "tid", "ts", "dur"}
        assert event["ts"] == pytest.approx((1000 + 130 + first) * 1e6)
        assert event["dur"] == pytest.approx(lasts * 1e6)


def test_a_run_that_ends_early_leaves_what_it_has(tmp_path: Path, clock: Clock) -> None:
    phases = Phases(tmp_path, rank=3, steps=10)
    for step in range(1, WARM_UP + 3):
        one_step(phases, clock, step)
    phases.close()
    found = events(tmp_path / "trace-rank-3.json")
    assert {event["pid"] for event in found} == {3}
    assert [e["name"] for e in found if e["name"].startswith("step")] == ["step 3", "step 4"]


def test_a_phase_costs_little(tmp_path: Path) -> None:
    """Far below the 5 % that the trainer may cost: a step has about ten phases."""
    phases = Phases(tmp_path)
    began = time.perf_counter()
    for _ in range(1000):
        with phases("data"):
            pass
    assert (time.perf_counter() - began) / 1000 < 1e-4
