"""Runs a test program as several MindSpore processes, and collects what each rank returns.

The program is a file of its own, so that the pytest process neither forks nor joins a cluster:

    from tests.training.ranks import program

    def main(rank: int, size: int, out: Path, args: list[str]) -> dict[str, Any]:
        return {"sum": array, "names": ["a"]}

    if __name__ == "__main__":
        program(main)

A start costs seconds, so one launch runs many cases.
"""

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.launcher import POLL, Ranks
from training.launch import join, leave, report_failure

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
Result = dict[str, Any]
"""NumPy arrays under their names, and whatever JSON holds."""


def run_ranks(program: str | Path, ranks: int, *args: object, timeout: float = 240) -> list[Result]:
    """What each rank of a program in tests/training/programs returned, by rank.

    `program` is a name there, with or without .py, or a path; `args` reach it as text. Raises
    AssertionError with the log's end of the first rank that failed, or of all after `timeout`
    seconds.
    """
    path = (PROGRAMS / program).with_suffix(".py")
    with tempfile.TemporaryDirectory(prefix="mindprep-ranks-") as folder:
        out = Path(folder)
        command = [sys.executable, str(path), str(out), *map(str, args)]
        paths = (str(ROOT), os.environ.get("PYTHONPATH"))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with Ranks(command, ranks, out / "logs", env) as running:
            limit = time.monotonic() + timeout
            failure = None
            while not running.done() and failure is None:
                if time.monotonic() > limit:
                    raise AssertionError(
                        f"{path.name} ran longer than {timeout} s\n"
                        + "\n".join(_tail(log, 15) for log in running.logs)
                    )
                time.sleep(POLL)
                failure = running.failure()
            if failure is not None:
                log = running.logs[failure.rank]
                raise AssertionError(f"rank {failure.rank}: {failure.error}\n{_tail(log, 60)}")
        return [_load(out, rank) for rank in range(ranks)]


def program(main: Callable[[int, int, Path, list[str]], Result]) -> None:
    """Joins the other ranks, calls main(rank, size, out, args), and keeps its result."""
    out, args = Path(sys.argv[1]), sys.argv[2:]
    os.chdir(out)  # where MindSpore leaves what it thinks of a graph that it refuses
    try:
        rank, size = join()
        _save(out, rank, main(rank, size, out, args))
    except BaseException as e:
        traceback.print_exc()
        report_failure(e, 1)
        leave(1)
    # A partner may still be reading from us: all stay until the last result is there.
    while len(list(out.glob("rank-*.json"))) < size:
        time.sleep(POLL)
    leave(0)


def _save(out: Path, rank: int, result: Result) -> None:
    arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
    np.savez(out / f"rank-{rank}.npz", **arrays)
    others = {name: value for name, value in result.items() if name not in arrays}
    path = out / f"rank-{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(others), encoding="utf-8")
    path.with_suffix(".part").rename(path)


def _load(out: Path, rank: int) -> Result:
    with np.load(out / f"rank-{rank}.npz", allow_pickle=False) as arrays:
        found: Result = dict(arrays)
    return {**found, **json.loads((out / f"rank-{rank}.json").read_text(encoding="utf-8"))}


def _tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
