"""What a run leaves about itself in the work folder, for people and for `--status`.

work/runs.jsonl     a line when a run starts, ends or fails: time, versions, config, seconds
work/progress.json  {pass: {"done": n, "tasks": n}}, renewed at most once a second
"""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, cast

from dataprep.corpus.config import Target
from dataprep.corpus.lock import Held
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.files import atomic_path, write_error, write_json
from dataprep.storage import Remote, entry, hasty, read
from dataprep.version import __version__

RUNS, PROGRESS = "runs.jsonl", "progress.json"
Map = Callable[[str, Sequence[Task], Callable[[int], None]], list[dict[str, Any]]]


class Diary:
    """Writes both files while a run goes on."""

    def __init__(self, config: Target) -> None:
        self._config = config
        self._progress: dict[str, dict[str, int]] = {}
        self._saved = 0.0

    def __enter__(self) -> Self:
        self._note("started", mindprep=__version__, config=asdict(cast(Any, self._config)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if value is not None:
            # A full disk, or a store that is gone: `value` says so already.
            with contextlib.suppress(UserError, OSError), hasty():
                self._note("failed", why=f"{type(value).__name__}: {value}")

    def finished(self, seconds: dict[str, float]) -> None:
        """The run has published its output."""
        self._note("finished", seconds={k: round(s, 3) for k, s in seconds.items()})

    def watch(
        self, do: Map, held: Sequence[Held]
    ) -> Callable[[str, list[Task]], list[dict[str, Any]]]:
        """An engine's map that also keeps progress.json, and stops when a folder is lost."""

        def watched(label: str, tasks: list[Task]) -> list[dict[str, Any]]:
            def save(done: int) -> None:
                for lock in held:
                    if lock.lost:
                        lock.check()
                self._progress[label] = {"done": done, "tasks": len(tasks)}
                if done == len(tasks) or time.monotonic() - self._saved >= 1:
                    self._saved = time.monotonic()
                    write_json(self._config.work / PROGRESS, self._progress)

            save(0)
            return do(label, tasks, save)

        return watched

    def _note(self, what: str, **more: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        path = self._config.work / RUNS
        line = json.dumps({"time": now, "event": what, **more}, ensure_ascii=False) + "\n"
        if isinstance(path, Remote):  # a store cannot append
            before = read(path).decode("utf-8", "replace") if entry(path) else ""
            with atomic_path(path) as tmp:
                tmp.write_text(before + line, encoding="utf-8")
            return
        try:
            with path.open("a", encoding="utf-8") as f:
                f.write(line)
        except OSError as e:
            raise write_error(path, e) from e
