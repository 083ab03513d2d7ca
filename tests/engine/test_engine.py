"""The local engine: receipts, order, failures."""

import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dataprep import UserError
from dataprep.engine import LocalEngine, Task, run_task
from dataprep.engine.task import look
from dataprep.engine.worker import Worker
from dataprep.files import atomic_path


@dataclass(frozen=True)
class Square:
    """Writes n squared; counts how often it ran."""

    n: int

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        out = folder / "out"
        with atomic_path(out) as tmp:
            tmp.write_text(str(self.n**2))
        with (folder.parent / f"runs-{self.n}").open("a") as f:
            f.write("x")
        return {"square": self.n**2, "worker": os.getpid()}, [out]


@dataclass(frozen=True)
class Die:
    """A worker that is killed, as by the kernel for its memory."""

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@dataclass(frozen=True)
class DieOnce:
    """Dies on its first attempt."""

    marker: Path

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"survived": True}, []


@dataclass(frozen=True)
class Fail:
    """An unexpected or an expected failure."""

    expected: bool

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        raise UserError("bad file") if self.expected else ZeroDivisionError("x")


def tasks(folder: Path, n: int = 5) -> list[Task]:
    return [Task(f"square {i}", folder / str(i), {"n": i}, Square(i)) for i in range(n)]


def runs(folder: Path) -> list[int]:
    """How often each task has run."""
    paths = [folder / f"runs-{i}" for i in range(5)]
    return [len(p.read_text()) if p.exists() else 0 for p in paths]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_once(tmp_path: Path, workers: int) -> None:
    for _ in range(2):
        with LocalEngine(workers, quiet=True) as engine:
            results = engine.map("square", tasks(tmp_path))
        assert [r["square"] for r in results] == [0, 1, 4, 9, 16]
        assert runs(tmp_path) == [1] * 5
    if workers == 2:
        assert os.getpid() not in {r["worker"] for r in results}


def test_what_a_receipt_does_not_vouch_for_is_redone(tmp_path: Path) -> None:
    with LocalEngine(1, quiet=True) as engine:
        all_tasks = tasks(tmp_path)
        engine.map("square", all_tasks)
        (tmp_path / "0/out").unlink()  # an output is gone
        (tmp_path / "1/out").write_text("cut off")  # or has another size
        (tmp_path / "2/receipt.json").write_text("{")  # a damaged receipt
        changed = replace(all_tasks[3], depends_on={"n": "other"})  # another config
        engine.map("square", [*all_tasks[:3], changed, all_tasks[4]])
    assert runs(tmp_path) == [2, 2, 2, 2, 1]


def test_an_unexpected_failure_names_its_task(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        run_task(Task("read data.jsonl", tmp_path / "t", {}, Fail(expected=False)))
    assert error.value.__notes__ == ["while doing: read data.jsonl"]
    assert not (tmp_path / "t/receipt.json").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_pass_through(tmp_path: Path, workers: int) -> None:
    for expected, kind, told in (
        (True, UserError, "bad file"),
        (False, (ZeroDivisionError, RuntimeError), "x"),
    ):
        bad = Task("bad", tmp_path / "bad", {}, Fail(expected))
        failure = pytest.raises(kind, match=told)
        with failure as error, LocalEngine(workers, quiet=True) as engine:
            engine.map("square", [*tasks(tmp_path), bad])
    assert "while doing: bad" in "".join(error.value.__notes__)


@pytest.mark.timeout(120)
def test_a_worker_that_dies_twice_on_a_task_ends_the_run(tmp_path: Path) -> None:
    dead = [Task("read deadly.jsonl", tmp_path / "d", {}, Die()), *tasks(tmp_path)]
    died = pytest.raises(UserError, match="died twice .* on one task: read deadly.jsonl")
    with died, LocalEngine(2, quiet=True) as engine:
        engine.map("deadly", dead)


@pytest.mark.timeout(120)
def test_a_worker_that_dies_once_costs_one_retry(tmp_path: Path) -> None:
    once = Task("read unlucky.jsonl", tmp_path / "d", {}, DieOnce(tmp_path / "died"))
    with LocalEngine(2, quiet=True) as engine:
        results = engine.map("deadly", [once, *tasks(tmp_path)])
        # The engine is whole again: both workers serve the next pass.
        assert engine.map("again", tasks(tmp_path / "again"))[4]["square"] == 16
    assert results[0]["survived"] is True
    assert [r["square"] for r in results[1:]] == [0, 1, 4, 9, 16]


@pytest.mark.timeout(120)
def test_a_worker_that_dies_while_idle_costs_nothing(tmp_path: Path) -> None:
    with LocalEngine(2, quiet=True) as engine:
        results = engine.map("square", tasks(tmp_path))
        for pid in {r["worker"] for r in results}:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, and for the engine to reap
        assert engine.map("again", tasks(tmp_path / "again"))[4]["square"] == 16


@pytest.mark.timeout(120)
def test_a_worker_that_dies_before_it_reads_its_task_costs_one_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started = Worker.start, []

    def start() -> Worker:
        worker = real()
        if not started:
            os.kill(worker.process.pid or 0, signal.SIGSTOP)  # as if its imports took long
            threading.Timer(0.2, worker.process.kill).start()
        started.append(worker)
        return worker

    monkeypatch.setattr(Worker, "start", start)
    with LocalEngine(2, quiet=True) as engine:
        results = engine.map("square", tasks(tmp_path))
    assert [r["square"] for r in results] == [0, 1, 4, 9, 16]
    assert len(started) == 3


def test_work_of_a_machine_that_failed_is_compared_with_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was lost has its size still: a disk that was not flushed holds zeros."""
    first, second = tasks(tmp_path)[2:4]
    for one in (first, second):
        run_task(one)
    (first.folder / "out").write_bytes(b"\0")
    assert [why for _, why in look([first, second])] == [
        "",
        "",
    ]  # this machine has not failed since
    monkeypatch.setattr("dataprep.engine.task.machine_start", lambda: "another")
    damaged = f"damaged: {first.folder / 'out'}"
    assert [why for _, why in look([first, second])] == [damaged, ""]
    assert run_task(first)["square"] == 4
    assert (first.folder / "out").read_text() == "4"


@pytest.mark.timeout(120)
def test_no_worker_outlives_its_engine(tmp_path: Path) -> None:
    with LocalEngine(2, quiet=True) as engine:
        workers = {r["worker"] for r in engine.map("square", tasks(tmp_path))}
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_plain_line_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataprep.engine.progress.PLAIN_EVERY", 0.0)
    with LocalEngine(1) as engine:
        engine.map("square", tasks(tmp_path))
        engine.map("square", tasks(tmp_path))
    told = capsys.readouterr().err
    assert "square: 40%, " in told and "s left" in told
    assert "done in" in told and "5 of them from an earlier run" in told
