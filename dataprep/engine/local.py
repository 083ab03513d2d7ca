"""The local engine: tasks on processes of this machine.

Results do not depend on the number of processes: tasks share nothing, and come back in the order
given. Processes are spawned, not forked: a fork copies locks that a tokenizer or Arrow thread may
hold at that moment.
"""

import concurrent.futures
import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from dataprep.engine.progress import Reporter
from dataprep.engine.task import Task, receipt_of, run_task
from dataprep.errors import UserError


class LocalEngine:
    """Runs tasks on `workers` processes; with one, in this process."""

    def __init__(self, workers: int, quiet: bool = False) -> None:
        self.workers, self.quiet = workers, quiet
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:
            # Work is atomic, so that a worker can be stopped at any moment: nobody waits for it.
            for worker in set(multiprocessing.active_children()) - self._others:
                worker.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, label: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Results of all tasks, in order; those with a valid receipt are not run again.

        Raises the first failure; UserError when a worker process dies.
        """
        results: list[dict[str, Any] | None] = [receipt_of(task) for task in tasks]
        todo = [i for i, result in enumerate(results) if result is None]
        with Reporter(label, sum(task.size for task in tasks), quiet=self.quiet) as report:
            for i, result in enumerate(results):
                if result is not None:
                    report.advance(tasks[i].size, reused=True)
            if self.workers == 1 or len(todo) <= 1 and self._pool is None:
                for i in todo:
                    results[i] = run_task(tasks[i])
                    report.advance(tasks[i].size)
            else:
                self._run(tasks, todo, results, report)
        return [result for result in results if result is not None]

    def _run(
        self,
        tasks: Sequence[Task],
        todo: Sequence[int],
        results: list[dict[str, Any] | None],
        report: Reporter,
    ) -> None:
        if self._pool is None:
            self._others = set(multiprocessing.active_children())
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), initializer=_start_worker
            )
        # Large tasks first, so that no long one is left for the end. The order is no part of the
        # result.
        order = sorted(todo, key=lambda i: -tasks[i].size)
        futures = {self._pool.submit(run_task, tasks[i]): i for i in order}
        try:
            for future in concurrent.futures.as_completed(futures):
                i = futures[future]
                results[i] = future.result()
                report.advance(tasks[i].size)
        except BrokenProcessPool as e:
            lost = [tasks[i].name for f, i in futures.items() if results[i] is None]
            raise UserError(
                "a worker process died (killed, or out of memory); one of these was in work: "
                f"{'; '.join(lost[:4])}. Free some memory or use fewer engine.workers, and run "
                "again: finished work is kept"
            ) from e
        finally:
            for future in futures:
                future.cancel()


def _start_worker() -> None:
    """One thread a worker: the workers are the parallelism. Ctrl-C is for the parent to handle."""
    pa.set_cpu_count(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
