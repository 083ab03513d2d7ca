"""The ray engine: tasks on the nodes of a Ray cluster, over folders that all nodes share.

    driver ── task, fingerprint ──► worker, on any node      the same run_task as on one machine
           ◄── result or failure ──

Ray carries tasks and says what it has lost; what is tried again, and how often, is decided here.
"""

import logging
import os
import pickle
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from dataprep.engine.local import LocalEngine, Result
from dataprep.engine.task import Task
from dataprep.engine.worker import answer
from dataprep.errors import UserError
from dataprep.files import write_error

LOOK_EVERY = 5.0  # seconds until the nodes are counted again while no task ends
STORE = 128 << 20  # bytes of shared memory of a local cluster: tasks and results are small
NOWHERE = "http://127.0.0.1:9"
# A local cluster stays on the loopback, and asks nobody which cloud it is in: Ray's head process
# asks the metadata services of three clouds even when usage statistics are off.
LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "http://169.254.169.254_proxy": NOWHERE,
    "http://metadata.google.internal_proxy": NOWHERE,
}


class RayEngine(LocalEngine):
    """Runs tasks on a Ray cluster: `address`, else RAY_ADDRESS, else one of `workers` CPUs here."""

    def __init__(
        self, address: str | None, workers: int, memory_mib: int, retries: int, quiet: bool = False
    ) -> None:
        super().__init__(workers, quiet)
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.memory, self.retries = memory_mib << 20, retries
        self._running: dict[Any, int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(sys.stderr))  # Ray tells of dead workers on stdout
            self._ray = self._connect(stack)
            stack.callback(self._cancel)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _connect(self, stack: ExitStack) -> Any:
        """The module `ray`, connected; what the caller has connected is used and left alone."""
        local = self.address == "local"
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **(LOCAL if local else {})}.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError as e:
            raise UserError("engine.kind is ray: run pip install 'mindprep[ray]' first") from e
        if ray.is_initialized():
            return ray
        self._reach()
        own = {"num_cpus": self.workers, "include_dashboard": False, "object_store_memory": STORE}
        quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
        try:
            ray.init(self.address, **quiet, **(own if local else {}))
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as e:
            raise self._unusable(e) from e
        stack.callback(ray.shutdown)
        return ray

    def _reach(self) -> None:
        """Raises UserError where Ray would try for minutes: nobody listens at host:port."""
        host, _, port = self.address.rpartition(":")
        if "/" in host or not port.isdecimal() or host in ("", "localhost", "127.0.0.1"):
            return  # on this machine Ray may listen on another of its addresses
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as e:
            raise self._unusable(e) from e

    def _unusable(self, e: Exception) -> UserError:
        told = f"cannot use the Ray cluster at {self.address}: {_line(e)}"
        return UserError(f"{told}; check engine.address, RAY_ADDRESS and RAY_AUTH_MODE")

    def _cancel(self) -> None:
        for ref in self._running:
            self._ray.cancel(ref, force=True)  # work is atomic, so that nobody waits for it
        self._running = {}

    def _slots(self) -> int:
        """How many tasks the living nodes can run at a time."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(int(min(n.get("CPU", 0), n.get("memory", 0) // self.memory)) for n in nodes)

    def _run(self, tasks: Sequence[Task], todo: Sequence[int]) -> Iterator[tuple[int, Result]]:
        ray = self._ray
        needs = {"num_cpus": 1, "memory": self.memory, "scheduling_strategy": "SPREAD"}
        remote = ray.remote(max_retries=0, **needs)(_serve)
        queue = deque(sorted(todo, key=lambda i: -tasks[i].size))  # large first, as locally
        losses: Counter[int] = Counter()
        waiting = False
        while queue or self._running:
            slots = self._slots()
            if not slots and not waiting and not self.quiet:
                need = f"a CPU and engine.memory_mib ({self.memory >> 20}) for a task"
                print(f"ray: no node has {need}; waiting for one", file=sys.stderr, flush=True)
            waiting = not slots
            # Twice the slots, so that no CPU waits for us; at least one, which tells an autoscaler.
            while queue and len(self._running) < max(2 * slots, 1):
                i = queue.popleft()
                self._running[_submit(remote, tasks[i])] = i
            for ref in ray.wait(list(self._running), timeout=LOOK_EVERY)[0]:
                i = self._running.pop(ref)
                try:
                    answer = ray.get(ref)
                except ray.exceptions.RayTaskError as e:  # our code did not even start there
                    cure = "install the same mindprep on all nodes"
                    raise UserError(
                        f"{tasks[i].name}: a node cannot run it: {_line(e)}; {cure}"
                    ) from e
                except ray.exceptions.RayError as e:  # a worker, node or object is lost
                    losses[i] += 1
                    if losses[i] > self.retries:
                        raise _lost(tasks[i], losses[i], e) from e
                    queue.appendleft(i)
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                yield i, answer


def _submit(remote: Any, task: Task) -> Any:
    """Our own pickle: Ray's would give a worker read-only arrays, which no local worker gets."""
    try:
        if isinstance(task.folder, Path):
            task.folder.mkdir(parents=True, exist_ok=True)  # the worker has to see it
    except OSError as e:
        raise write_error(task.folder, e) from e
    return remote.options(name=task.name).remote(pickle.dumps(task), task.fingerprint)


def _serve(pickled: bytes, fingerprint: str) -> Result | BaseException:
    """In a worker: what the task returns or raises."""
    pa.set_cpu_count(1)  # the workers are the parallelism
    task: Task = pickle.loads(pickled)
    host = os.uname().nodename
    if isinstance(task.folder, Path) and not task.folder.is_dir():
        return UserError(
            f"node {host} does not see {task.folder}, which the driver made; put inputs, work_dir "
            "and out_dir on storage that all nodes share, under the same path"
        )
    if task.fingerprint != fingerprint:
        return UserError(
            f"node {host} has another mindprep or Python (Unicode) than the driver; install the "
            "same on all nodes"
        )
    return answer(task)


def _lost(task: Task, times: int, e: Exception) -> UserError:
    return UserError(
        f"the worker was lost {times} times on one task: {task.name} (last: {type(e).__name__}: "
        f"{_line(e)}). If memory ran out, set a larger engine.memory_mib; finished work is kept"
    )


def _line(e: BaseException) -> str:
    """What an exception says, in one short line: the last one of Ray's tracebacks."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    return lines[-1][:300]
