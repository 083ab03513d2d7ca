"""One process among several: who it is, how it joins the others, and how it leaves them.

`msrun` and `mindprep train --workers N` both start MindSpore's dynamic cluster: N workers, and one
scheduler that introduces them to each other, told apart by the environment.

    MS_ROLE        MS_WORKER or MS_SCHED
    MS_WORKER_NUM  processes, the scheduler not counted
    MS_NODE_ID     rank of a worker; RANK_ID too
    MINDPREP_FAILURES   folder for what a failing rank has to say; set by `--workers`, not by msrun

A rank that fails must end the job: its partners wait for it in a collective and would find out
only after half a minute. So it says why, in a file and in its log, and ends at once, without the
closing handshake of the cluster.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from dataprep.errors import UserError, printable

FAILURES = "MINDPREP_FAILURES"
GRACE = 4.0  # seconds that a scheduler may live without workers
PR_SET_PDEATHSIG = 1  # prctl(2)


def processes() -> tuple[int, int]:
    """(rank, size) as the environment tells them; (0, 1) in a process that nobody launched.

    When msrun runs on several machines without --node_rank, only `join` knows the rank.
    """
    size = int(os.environ.get("MS_WORKER_NUM", "1"))
    if size == 1:
        return 0, 1
    return int(os.environ.get("MS_NODE_ID") or os.environ.get("RANK_ID", "0")), size


def is_scheduler() -> bool:
    """Whether this process only introduces the others; its `join` does not return."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


def join() -> tuple[int, int]:
    """(rank, size), connected to the others when there are any. Call it once, at first.

    Raises UserError when they do not all come within MS_TOPO_TIMEOUT seconds.
    """
    size = processes()[1]
    if size == 1:
        return 0, 1
    if FAILURES in os.environ:
        end_with_launcher()
    elif is_scheduler():  # it holds Python's lock for good, so another process must watch it
        watch = [sys.executable, "-m", "training.launch", str(os.getppid()), str(os.getpid())]
        subprocess.Popen(watch, stdin=subprocess.DEVNULL)
    from mindspore.communication import get_rank, init

    try:
        init()
    except RuntimeError as e:
        within = os.environ.get("MS_TOPO_TIMEOUT", "some")
        raise UserError(
            f"the {size} processes did not all connect within {within} seconds "
            f"({_first_sentence(e)}); start as many as --worker_num says, with the same "
            "--master_addr and --master_port"
        ) from e
    return int(get_rank()), size


def report_failure(error: BaseException, code: int) -> None:
    """Writes why this rank fails to where its launcher looks; nothing without a launcher."""
    folder = os.environ.get(FAILURES)
    if folder is None:
        return
    rank = processes()[0]
    expected = isinstance(error, UserError | OSError)
    kind = type(error).__name__
    text = str(error) or kind if expected else f"{kind}: {error}"
    told = {"rank": rank, "error": printable(text), "code": code, "time": time.time()}
    path = Path(folder) / f"rank-{rank:05d}.json"
    path.with_suffix(".part").write_text(json.dumps(told), encoding="utf-8")
    path.with_suffix(".part").rename(path)


def leave(code: int) -> NoReturn:
    """Ends this process at once, its output written; other ranks are not asked."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__


def end_with_launcher() -> None:
    """The kernel kills this process when its launcher dies, however that ends (Linux)."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def end_without_workers(parent: int, scheduler: int) -> None:
    """Ends a scheduler when all workers that its parent, msrun, started have ended.

    Left alone, a scheduler waits about half a minute for a worker that was killed, and msrun for
    the scheduler. One whose parent starts no workers (they are on other machines) is left alone.
    """
    seen, gone_since = False, 0.0
    while _lives(scheduler):
        living, ended = _children(parent, scheduler)
        seen = seen or living > 0 or ended > 0
        if living > 0:
            gone_since = 0.0
        elif seen:
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > GRACE:
                print("all workers have ended before the job was done", file=sys.stderr)
                os.kill(scheduler, signal.SIGKILL)
                return
        time.sleep(0.25)


def _children(parent: int, scheduler: int) -> tuple[int, int]:
    """(living, ended) child processes of the parent besides the scheduler."""
    living, ended = 0, 0
    for thread in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in map(int, thread.read_text(encoding="ascii").split()):
                if child != scheduler:
                    lives = _lives(child)
                    living, ended = living + lives, ended + (not lives)
    return living, ended


def _lives(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        end_without_workers(int(sys.argv[1]), int(sys.argv[2]))
    else:
        join()  # a scheduler that needs nothing of the program it introduces
