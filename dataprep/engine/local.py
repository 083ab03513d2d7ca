"""The local engine: tasks on processes of this machine.

    parent ── task ──► worker       one pipe a worker, one task in it at a time: the parent always
           ◄─ result ─              knows which task died with its worker

Results do not depend on the number of processes: tasks share nothing, and come back in the order
given.
"""

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from dataprep.engine.progress import Reporter
from dataprep.engine.task import Task, look, run_task
from dataprep.engine.worker import Worker
from dataprep.errors import UserError

Result = dict[str, Any]
RETRIES = 1  # a task whose worker died is given to another, once


class LocalEngine:
    """Runs tasks on `workers` processes; with one, in this process."""

    def __init__(self, workers: int, quiet: bool = False) -> None:
        self.workers, self.quiet = workers, quiet
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            worker.stop()
        self._idle, self._busy = [], {}

    def map(
        self, label: str, tasks: Sequence[Task], on_done: Callable[[int], None] = lambda n: None
    ) -> list[Result]:
        """Results of all tasks, in order; those with a valid receipt are not run again.

        `on_done` gets the number of tasks done, each time it changes.
        Raises the first failure; UserError when a task's worker dies twice.
        """
        results: dict[int, Result] = {}
        todo = []
        with Reporter(label, sum(task.size for task in tasks), quiet=self.quiet) as report:
            for i, (task, (done, _)) in enumerate(zip(tasks, look(tasks))):
                if done is None:
                    todo.append(i)
                else:
                    results[i] = done
                    report.advance(task.size, reused=True)
            on_done(len(results))
            for i, result in self._run(tasks, todo):
                results[i] = result
                report.advance(tasks[i].size)
                on_done(len(results))
        return [results[i] for i in range(len(tasks))]

    def _run(self, tasks: Sequence[Task], todo: Sequence[int]) -> Iterator[tuple[int, Result]]:
        if self.workers == 1:
            for i in todo:
                yield i, run_task(tasks[i])
            return
        # Large tasks first, so that no long one is left for the end. The order is no part of the
        # result.
        queue = deque(sorted(todo, key=lambda i: -tasks[i].size))
        deaths = dict.fromkeys(todo, 0)
        while queue or self._busy:
            while queue and len(self._busy) < self.workers:
                i = queue.popleft()
                worker = self._give(tasks[i], fresh=deaths[i] > 0)
                self._busy[worker.pipe] = worker, i
            for pipe in wait(list(self._busy)):
                assert isinstance(pipe, Connection)
                worker, i = self._busy.pop(pipe)
                try:
                    answer = pipe.recv()
                except (EOFError, ConnectionResetError):  # the kernel closed its end: it is dead
                    worker.stop()
                    deaths[i] += 1
                    if deaths[i] > RETRIES:
                        raise _died(tasks[i], worker.process.exitcode) from None
                    queue.appendleft(i)
                    continue
                self._idle.append(worker)
                if isinstance(answer, BaseException):
                    raise answer
                yield i, answer

    def _give(self, task: Task, fresh: bool) -> Worker:
        """The worker that has the task now: an idle one that lives, or one of its own.

        `fresh`: a worker that was killed with others may have taken the idle ones along.
        """
        while self._idle and not fresh:
            worker = self._idle.pop()
            try:
                worker.pipe.send(task)
            except BrokenPipeError:  # it died while idle, of no task
                worker.stop()
            else:
                return worker
        worker = Worker.start()
        with contextlib.suppress(BrokenPipeError):  # told when its answer is waited for
            worker.pipe.send(task)
        return worker


def _died(task: Task, code: int | None) -> UserError:
    how = "was killed by the kernel or a person" if code == -signal.SIGKILL else f"exit code {code}"
    return UserError(
        f"a worker process died twice ({how}) on one task: {task.name}. If memory ran out, use "
        "fewer engine.workers, a smaller read.max_document_mib or write.buffer_mib; finished work "
        "is kept"
    )
