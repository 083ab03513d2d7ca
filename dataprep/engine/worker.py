"""One worker process of the local engine: a task in, its result or exception out."""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import pyarrow as pa

from dataprep.engine.task import Task, run_task
from dataprep.errors import UserError


@dataclass(frozen=True)
class Worker:
    """A process and our end of its pipe."""

    process: BaseProcess
    pipe: Connection

    @classmethod
    def start(cls) -> "Worker":
        """Spawned, not forked: a fork copies locks that a tokenizer or Arrow thread may hold."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        resource_tracker.ensure_running()  # its own start would unblock what is blocked below
        # Ctrl-C is for the parent to handle: a child inherits the mask, its imports included.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return cls(process, ours)

    def stop(self) -> None:
        """At once: work is atomic, so that nobody waits for it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    pa.set_cpu_count(1)  # the workers are the parallelism
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone
        while True:
            task = pipe.recv()
            pipe.send(answer(task))


def _die_with_parent() -> None:
    """A worker that outlived a killed parent would write beside the workers of the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def answer(task: Task) -> dict[str, Any] | BaseException:
    """What a task returns, or what it raised, in a form that can be sent."""
    try:
        return run_task(task)
    except UserError as e:
        return e
    except Exception as e:
        told = RuntimeError(f"{type(e).__name__}: {e}")  # not every exception can be pickled
        told.add_note("".join(traceback.format_exception(e)))
        return told
