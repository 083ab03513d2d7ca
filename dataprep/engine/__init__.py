"""Engines run tasks; what a task does is none of their business."""

from dataclasses import dataclass
from typing import Literal

from dataprep.engine.local import LocalEngine
from dataprep.engine.ray_engine import RayEngine
from dataprep.engine.task import Task, Work, run_task
from dataprep.errors import UserError

__all__ = ["Engine", "LocalEngine", "RayEngine", "Task", "Work", "run_task"]


@dataclass(frozen=True)
class Engine:
    """Where tasks run. Changes no byte of the output."""

    kind: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: a Ray cluster whose nodes share the folders."""
    workers: int = 1
    """Processes; ray: CPUs of a cluster started for this run, a running one brings its own."""
    address: str | None = None
    """ray: a running cluster (host:port, or auto), else RAY_ADDRESS, else one on this machine."""
    memory_mib: int = 1536
    """ray: memory (MiB) that a node must have left for a task."""
    retries: int = 3
    """ray: how often a task is given out again when its worker or node is lost."""
    split_mib: int = 128
    """Files that can be cut are cut into pieces of this size (MiB), the work a kill can cost."""
    quiet: bool = False
    """No progress."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"engine.workers is {self.workers}; it must be 1 or more")
        if self.split_mib < 1:
            raise UserError(f"engine.split_mib is {self.split_mib}; it must be 1 or more")

        if self.memory_mib < 1:
            raise UserError(f"engine.memory_mib is {self.memory_mib}; it must be 1 or more")
        if self.retries < 0:
            raise UserError(f"engine.retries is {self.retries}; it must be 0 or more")

    def start(self) -> LocalEngine:
        """The engine, to be used as a context manager."""
        if self.kind == "ray":
            return RayEngine(self.address, self.workers, self.memory_mib, self.retries, self.quiet)
        return LocalEngine(self.workers, self.quiet)
