"""Launching: who is who, what a failing rank leaves behind, and that all end with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dataprep.errors import UserError
from pipelines.launcher import Failure, free_port, is_shown, launch
from pipelines.train import main, take_workers
from tests.training.ranks import PROGRAMS, ROOT, run_ranks
from training.hold import hold
from training.launch import FAILURES, is_scheduler, join, processes, report_failure

LIMIT = 10.0  # seconds from a rank's failure to the end of all


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MS_WORKER_NUM", "MS_ROLE", "MS_NODE_ID", "RANK_ID", FAILURES):
        monkeypatch.delenv(name, raising=False)


def test_processes_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes() == join() == (0, 1)
    assert not is_scheduler()
    for name, value in {"MS_WORKER_NUM": "4", "MS_NODE_ID": "3", "RANK_ID": "3"}.items():
        monkeypatch.setenv(name, value)
    assert processes() == (3, 4)
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    assert is_scheduler()


def test_workers_are_taken_from_the_arguments() -> None:
    assert take_workers(["--steps", "3"]) == (1, ["--steps", "3"])
    assert take_workers(["--workers", "4", "--steps", "3"]) == (4, ["--steps", "3"])
    assert take_workers(["--steps", "3", "--workers=2"]) == (2, ["--steps", "3"])
    for wrong in (["--workers", "0"], ["--workers=two"], ["--workers"]):
        with pytest.raises(UserError, match="give a number above 0"):
            take_workers(wrong)


def test_factors_are_checked_before_anything_starts() -> None:
    args = ["--workers", "4", "--data", "d", "--save_dir", "s", "--parallel.model_parallel", "3"]
    with pytest.raises(UserError, match=r"model_parallel 3 .* number of processes, 4"):
        main(args)


def test_logs_of_another_run_are_not_written_over(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-00000.log"
    log.parent.mkdir()
    log.write_text("step 1")
    held = hold(tmp_path)
    with pytest.raises(UserError, match="another run writes into"):
        main(["--workers", "2", "--data", "d", "--save_dir", str(tmp_path)])
    os.close(held)
    assert log.read_text() == "step 1"


@pytest.mark.parametrize(
    ("failure", "shown", "told"),
    [
        (Failure(1, 2, "timed out", True), "heartbeat timed out, retrying\n", False),
        (Failure(1, 2, "TimeoutError", True), "", False),
        (Failure(1, 2, "no folder d", True), "x\nerror: no folder d\n", True),
        (Failure(1, 2, "[Errno 5] d", True), "error: [Errno 5] d; check the path", True),
        (Failure(0, 70, "RuntimeError: a\\nb", True), "RuntimeError: a\nb\n", True),
        (Failure(0, 1, "ended by SIGKILL", False), "", False),
    ],
)
def test_an_error_is_left_out_where_rank_0_has_said_it(
    failure: Failure, shown: str, told: bool
) -> None:
    assert is_shown(failure, shown) == told


def test_a_failure_is_told_to_the_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report_failure(ValueError("nobody asked"), 1)
    for name, value in {"MS_WORKER_NUM": "4", "MS_NODE_ID": "2", FAILURES: str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    report_failure(UserError("steps is 0:\ngive more"), 2)
    told = json.loads((tmp_path / "rank-00002.json").read_text())
    assert (told["rank"], told["code"], told["error"]) == (2, 2, "steps is 0:\\ngive more")
    report_failure(TimeoutError(), 2)
    assert json.loads((tmp_path / "rank-00002.json").read_text())["error"] == "TimeoutError"


def failed_at(folder: Path) -> float:
    """When rank 1 failed, by its log."""
    text = next(folder.glob("*1.log")).read_text()
    return float(text.split("failing at ")[1].split()[0])


@pytest.mark.parametrize(
    ("kind", "code", "told"),
    [
        ("user", 2, "error: rank 1: data: the folder is missing; build it\n"),
        pytest.param(
            *("defect", 1, "error: rank 1: ValueError: a defect\n"), marks=pytest.mark.parity
        ),
        pytest.param(
            *("exit", 5, "error: rank 1: ended by exit code 5; its log is "),
            marks=pytest.mark.parity,
        ),
        ("kill", 1, "error: rank 1: ended by SIGKILL, which another program or the system sent"),
        ("user joined", 2, "error: rank 1: data: the folder is missing; build it\n"),
    ],
)
def test_a_failing_rank_ends_all_with_its_own_error(
    kind: str, code: int, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(PROGRAMS / "failing.py"), *kind.split()]
    assert launch(command, 2, tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)}) == code
    assert time.time() - failed_at(tmp_path) < LIMIT
    out, err = capfd.readouterr()
    assert out in ("", "rank 0 of 2 began\n")  # it may be ended before it begins
    assert err.startswith(told) and err.count("\n") == 1
    log = (tmp_path / "rank-00001.log").read_text()
    assert ("Traceback" in log) == (kind == "defect")


def test_what_all_say_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a wrong config, whichever rank is the first."""
    command = [sys.executable, str(PROGRAMS / "failing.py"), "all"]
    assert launch(command, 2, tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)}) == 2
    out, err = capfd.readouterr()
    assert out.splitlines()[::2] == [
        "rank 0 of 2 began",
        "error: data: the folder is missing; build it",
    ]
    assert err == ""


def test_all_may_end_well(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, str(PROGRAMS / "failing.py"), "none"]
    assert launch(command, 2, tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)}) == 0
    assert capfd.readouterr() == ("rank 0 of 2 began\n", "")


def test_ctrl_c_and_a_killed_launcher_end_all(tmp_path: Path) -> None:
    """Of the two ranks, none lives on."""
    for sent in (signal.SIGINT, signal.SIGKILL):
        logs = tmp_path / sent.name
        code = (
            "import sys; from pathlib import Path; from pipelines.launcher import launch; "
            f"launch([sys.executable, {str(PROGRAMS / 'waiting.py')!r}], 2, Path({str(logs)!r}))"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", code], env=env, stderr=-3) as launcher:
            started: list[int] = []
            limit = time.monotonic() + 60
            while len(started) < 2 and time.monotonic() < limit:
                time.sleep(0.1)
                words = [path.read_text().split() for path in logs.glob("rank-*.log")]
                started = [int(found[0]) for found in words if found]
            launcher.send_signal(sent)
            launcher.wait(LIMIT)
        assert len(started) == 2
        while any(Path(f"/proc/{pid}").exists() for pid in started):
            assert time.monotonic() < limit
            time.sleep(0.1)


@pytest.mark.parity
def test_bare_msrun_ends_soon_after_a_failure(tmp_path: Path) -> None:
    """msrun waits for the scheduler, which does not wait for the dead."""
    command = [str(Path(sys.executable).parent / "msrun"), "--worker_num=2", "--local_worker_num=2"]
    command += [f"--master_port={free_port()}", f"--log_dir={tmp_path}", "--join=True"]
    command += ["python", str(PROGRAMS / "failing.py"), "user", "joined"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=120)
    assert time.time() - failed_at(tmp_path) < LIMIT
    assert done.returncode != 0
    assert b"error: data: the folder is missing; build it" in done.stdout


def test_a_missing_rank_is_told(tmp_path: Path) -> None:
    """Rank 1 of 2, alone."""
    place = {"MS_WORKER_NUM": "2", "MS_ROLE": "MS_WORKER", "MS_NODE_ID": "1", "RANK_ID": "1"}
    found = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(free_port())}
    env = {**os.environ, **place, **found, "PYTHONPATH": str(ROOT), "MS_TOPO_TIMEOUT": "3"}
    command = [sys.executable, str(PROGRAMS / "failing.py"), "none", "joined"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=100)
    assert done.returncode == 2
    assert b"error: the 2 processes did not all connect within 3 seconds" in done.stderr


def test_a_program_of_ranks_gives_back_what_each_returned() -> None:
    """And says whose error it was, with its log."""
    with pytest.raises(AssertionError, match="rank 0: .*\n(.*\n)*.*no such program"):
        run_ranks("waiting", 1, "no such program")
