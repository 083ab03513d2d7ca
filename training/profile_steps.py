"""Where the time of a step goes: seconds of each phase, and a trace of some steps to look at.

    phases = Phases(save_dir, rank=0, steps=2)
    while training:
        with phases("data"):
            ...
        with phases("optimizer"):
            ...
        seconds = phases.take(step)        {"data": 0.002, "optimizer": 0.11}

The trace is in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing show:
trace.json of rank 0, trace-rank-R.json of another. Times are those of the machine's clock, so the
traces of several ranks on one machine may be shown together.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dataprep.files import atomic_path

WARM_UP = 2  # steps that are not traced: the first ones compile


class Phases:
    """A timer of phases, which may be nested, of one thread."""

    def __init__(self, folder: Path, rank: int = 0, steps: int = 0) -> None:
        """steps: that are traced, after WARM_UP; 0: none."""
        self.path = folder / ("trace.json" if rank == 0 else f"trace-rank-{rank}.json")
        self._rank, self._steps = rank, steps
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[dict[str, Any]] = []
        self._done = 0
        self._offset = time.time() - time.perf_counter()
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times what is done inside, also when it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self._seconds[name] += ended - began
            self._add(name, began, ended)

    def take(self, step: int) -> dict[str, float]:
        """Ends a step, which began when the one before ended: seconds of each of its phases.

        Phases that are nested count in each other. Raises UserError when the trace is due and
        cannot be written.
        """
        ended = time.perf_counter()
        self._add(f"step {step}", self._began, ended)
        seconds = dict(self._seconds)
        self._seconds.clear()
        self._began = ended
        self._done += 1
        if self._done == WARM_UP + self._steps:
            self.close()
        return seconds

    def close(self) -> None:
        """Writes the trace, if there is something in it that is not written yet."""
        if not self._events:
            return
        head = {"ph": "M", "pid": self._rank, "tid": 0}
        names = [
            {**head, "name": "process_name", "args": {"name": f"rank {self._rank}"}},
            {**head, "name": "thread_name", "args": {"name": "training"}},
        ]
        trace = {"traceEvents": names + self._events, "displayTimeUnit": "ms"}
        with atomic_path(self.path) as tmp:
            tmp.write_text(json.dumps(trace) + "\n", encoding="utf-8")
        self._events = []

    def _add(self, name: str, began: float, ended: float) -> None:
        """A complete event; times in microseconds."""
        if WARM_UP <= self._done < WARM_UP + self._steps:
            at = {"ts": (began + self._offset) * 1e6, "dur": (ended - began) * 1e6}
            self._events.append({"name": name, "ph": "X", "pid": self._rank, "tid": 0, **at})
