"""What a person sees of long work: bars on a terminal, else a plain line every 30 seconds."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 30.0  # seconds


class Reporter:
    """Progress of one pass: `total` units of effort, advanced as tasks end. Writes to stderr."""

    def __init__(self, label: str, total: int, unit: str = "MB", quiet: bool = False) -> None:
        self.label, self.total, self.unit = label, max(total, 1), unit
        self._done = 0
        self._skipped = 0
        self._start = self._said = time.monotonic()
        self._quiet = quiet
        console = Console(file=sys.stderr)
        self._bar = None
        if console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._id = self._bar.add_task(label, total=self.total, rate="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            reused = f", {self._skipped} of them from an earlier run" if self._skipped else ""
            self._say(f"done in {self.seconds:.1f} s{reused}")

    @property
    def seconds(self) -> float:
        """Since the start of the pass."""
        return time.monotonic() - self._start

    def advance(self, size: int, reused: bool = False) -> None:
        """A task of this size has ended."""
        self._done += size
        self._skipped += reused
        if self._bar:
            self._bar.update(self._id, completed=self._done, rate=self._rate())
        elif time.monotonic() - self._said >= PLAIN_EVERY:
            self._said = time.monotonic()
            left = self.seconds * (self.total - self._done) / max(self._done, 1)
            self._say(f"{self._done / self.total:.0%}, {self._rate()}, about {left:.0f} s left")

    def _rate(self) -> str:
        scale = 1e6 if self.unit == "MB" else 1
        return f"{self._done / scale / max(self.seconds, 1e-9):.1f} {self.unit}/s"

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"{self.label}: {text}", file=sys.stderr, flush=True)
