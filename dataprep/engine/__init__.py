"""Engines run tasks; what a task does is none of their business."""

from dataclasses import dataclass
from typing import Literal

from dataprep.engine.local import LocalEngine
from dataprep.engine.task import Task, Work, run_task
from dataprep.errors import UserError

__all__ = ["Engine", "LocalEngine", "Task", "Work", "run_task"]


@dataclass(frozen=True)
class Engine:
    """Where tasks run. Changes no byte of the output."""

    kind: Literal["local"] = "local"
    """local: processes of this machine."""
    workers: int = 1
    """Processes."""
    split_mib: int = 128
    """Files that can be cut are cut into pieces of this size (MiB), the work a kill can cost."""
    quiet: bool = False
    """No progress."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"engine.workers is {self.workers}; it must be 1 or more")
        if self.split_mib < 1:
            raise UserError(f"engine.split_mib is {self.split_mib}; it must be 1 or more")

    def start(self) -> LocalEngine:
        """The engine, to be used as a context manager."""
        return LocalEngine(self.workers, self.quiet)
