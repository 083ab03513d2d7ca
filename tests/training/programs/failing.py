"""A command that fails as it is told to, for test_training_launch.py.

Arguments: what rank 1 does, and whether ranks connect first: KIND [joined]. Meanwhile rank 0 waits
in a collective (joined), or sleeps, deaf to SIGTERM; or does the same a little later (all).
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

from dataprep.errors import UserError
from pipelines.launcher import run_rank
from training.launch import join, processes


def main(argv: Sequence[str] | None) -> int:
    kind, is_joined = (argv or [""])[0], "joined" in (argv or [])
    rank, size = join() if is_joined else processes()
    print(f"rank {rank} of {size} began", flush=True)
    if rank == 1:
        fail(kind)
    if kind == "none":
        return 0
    if kind == "all":
        time.sleep(0.2)
        fail(kind)
    if is_joined:
        import mindspore as ms

        from training.groups import Group

        group = Group(range(size), rank)
        for _ in range(1000):
            group.all_reduce(ms.Tensor([1.0], ms.float32))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return 0


def fail(kind: str) -> None:
    time.sleep(0.5)  # the others are waiting by now
    print(f"failing at {time.time()}", flush=True)
    if kind in ("user", "all"):
        raise UserError("data: the folder is missing; build it")
    if kind == "defect":
        raise ValueError("a defect")
    if kind == "exit":
        os._exit(5)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run_rank(main, sys.argv[1:]))
