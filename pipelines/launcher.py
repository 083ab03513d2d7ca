"""Starts one process a rank on this machine, and ends them together.

What msrun does (MindSpore's dynamic cluster: the workers and a scheduler), with one difference: the
first rank that fails ends all others within a second, and its own error is the one that is shown.

    logs/rank-00000.log ...   output of each rank; rank 0 writes to the console too
    logs/scheduler.log
"""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dataprep.errors import UserError
from pipelines.common import Main, run
from training.launch import FAILURES, is_scheduler, join, leave, report_failure

POLL = 0.05  # seconds between looks at the processes
SETTLE = 0.5  # seconds in which an earlier failure than the one seen may still be told
PATIENCE = 2.0  # seconds from SIGTERM to SIGKILL
QUIET = re.compile(rb"\[(DEBUG|INFO|WARNING)\] [A-Z_]+\(")
RECENT = 1 << 16  # characters of rank 0's output in which an error is looked for
COLLECTIVE = 600  # seconds that a collective waits, such as for a partner that compiles
CONNECT = 120  # seconds in which all ranks must have found each other


@dataclass(frozen=True)
class Failure:
    """The first rank that failed, and why."""

    rank: int
    code: int
    """Exit code for the whole: the rank's own, or 1 when it was killed."""
    error: str
    told: bool
    """Whether the rank has said so itself."""


class Ranks:
    """Running processes, one a rank, and their scheduler. Leaving the context ends all."""

    def __init__(
        self, command: Sequence[str], workers: int, logs: Path, env: Mapping[str, str] = os.environ
    ) -> None:
        """Starts them; `env` is that of the ranks, completed by what tells who is who."""
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = [logs / f"rank-{rank:05d}.log" for rank in range(workers)]
        self.failures = tempfile.TemporaryDirectory(prefix="mindprep-ranks-")
        shared = {
            "GLOG_v": "3",  # MindSpore's log: errors only
            "MS_RETRY_INTERVAL_LOWER": "1",  # seconds until a worker looks again for the scheduler
            "MS_RETRY_INTERVAL_UPPER": "1",
            "MS_TOPO_TIMEOUT": str(CONNECT),
            "MS_CPU_COMM_OP_TIMEOUT": str(COLLECTIVE),
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)),
            **env,
            "MS_WORKER_NUM": str(workers),
            "RANK_SIZE": str(workers),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(free_port()),
            "PYTHONUNBUFFERED": "1",
            FAILURES: self.failures.name,
        }
        scheduler = [sys.executable, "-m", "training.launch"]
        role = {"MS_ROLE": "MS_SCHED", "RANK_ID": "0"}
        self.scheduler = _start(scheduler, {**shared, **role}, logs / "scheduler.log")
        self.workers = []
        for rank, log in enumerate(self.logs):
            place = dict.fromkeys(("MS_NODE_ID", "RANK_ID", "DEVICE_ID"), str(rank))
            own = {**shared, **place, "MS_ROLE": "MS_WORKER"}
            self.workers.append(_start(command, own, log))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.failures.cleanup()

    def done(self) -> bool:
        """Whether every rank has ended well."""
        return all(worker.poll() == 0 for worker in self.workers)

    def failure(self) -> Failure | None:
        """The first that failed, if one did; of several within half a second, the earliest."""
        if all(worker.poll() in (None, 0) for worker in self.workers):
            return None
        time.sleep(SETTLE)
        dead = {r: w.returncode for r, w in enumerate(self.workers) if w.poll() not in (None, 0)}
        told = [json.loads(p.read_text("utf-8")) for p in Path(self.failures.name).glob("*.json")]
        killed = [rank for rank, code in dead.items() if code < 0]
        if told:
            first = min(told, key=lambda t: t["time"])
            return Failure(first["rank"], first["code"], first["error"], told=True)
        rank = (killed or list(dead))[0]
        return Failure(rank, max(dead[rank], 1), self._unsaid(rank, dead[rank]), told=False)

    def _unsaid(self, rank: int, code: int) -> str:
        """What is known of a rank that ended without a word."""
        how = f"exit code {code}"
        if code < 0:
            how = f"{signal.Signals(-code).name}, which another program or the system sent"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"ended by {how}; its log is {self.logs[rank]}"

    def end(self) -> None:
        """Ends whatever still runs: asked first, then killed."""
        running = [*self.workers, self.scheduler]
        for ask in (signal.SIGTERM, signal.SIGKILL):
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, ask)
            limit = time.monotonic() + PATIENCE
            while time.monotonic() < limit and any(p.poll() is None for p in running):
                time.sleep(POLL)
        for process in running:
            process.wait()


def launch(
    command: Sequence[str], workers: int, logs: Path, env: Mapping[str, str] = os.environ
) -> int:
    """Runs a command as so many ranks and returns the exit code for the whole.

    0 when all end with 0; else that of the first that failed, whose error is printed on stderr,
    unless rank 0 has said the same. Ctrl-C ends all and is raised as KeyboardInterrupt.
    """
    shown = ""  # the end of what rank 0 has written
    with Ranks(command, workers, logs, env) as ranks, ranks.logs[0].open("rb") as output:
        failure = None
        while not ranks.done() and failure is None:
            time.sleep(POLL)
            shown = (shown + _show(output))[-RECENT:]
            failure = ranks.failure()
        ranks.end()
        shown += _show(output)
    if failure is None:
        return 0
    if not is_shown(failure, shown):
        print(f"error: rank {failure.rank}: {failure.error}", file=sys.stderr)
    return failure.code


def run_rank(main: Main, argv: Sequence[str] | None = None) -> int:
    """Runs a command as one of several processes; one that fails says why and ends hard."""
    if is_scheduler():  # which stays in `join` until all are done
        return run(lambda _: join()[0])

    def reported(argv: Sequence[str] | None) -> int:
        try:
            return main(argv)
        except BaseException as e:
            report_failure(e, 2 if isinstance(e, UserError | OSError) else 1)
            raise

    code = run(reported, argv)
    return code if code == 0 else leave(code)


def free_port() -> int:
    """A port of this machine that nobody listens on, outside of those given to clients."""
    for _ in range(100):
        port = 10000 + secrets.randbelow(20000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port from 10000 to 29999")


def _start(command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the launcher, which ends them
        )


def is_shown(failure: Failure, shown: str) -> bool:
    """Whether rank 0, whose output is `shown`, has said the same."""
    if failure.rank == 0:
        return failure.told
    line = f"error: {failure.error}"
    return any(said == line or said.startswith(f"{line};") for said in shown.splitlines())


def _show(output: BinaryIO) -> str:
    """Shows and returns what rank 0 has written since the last call, without MindSpore's log below
    errors.
    """
    lines = (line for line in output.readlines() if not QUIET.match(line))
    text = b"".join(lines).decode("utf-8", "backslashreplace")
    sys.stdout.write(text)
    sys.stdout.flush()
    return text
