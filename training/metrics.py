"""One JSON line and one log line a step, and a plot of them.

    {"step": 0, "eval_loss": 8.32}                                     before the first step
    {"step": 1, "loss": 8.33, "lr": 0.0003, "grad_norm": 1.9, "tokens_per_s": 4100.0,
     "valid_tokens": 4072, "consumed_rows": 8}                         "eval_loss" when evaluated

`loss` and `eval_loss` are nats per valid target; `tokens_per_s` counts all slots of the rows.
"""

import json
import logging
from pathlib import Path
from typing import Any

from dataprep.errors import UserError
from dataprep.files import atomic_path, sync, write_error

log = logging.getLogger(__name__)

Record = dict[str, Any]


class MetricsLog:
    """Appends records to a JSON Lines file, and holds those of the whole run.

    Opening it for a run that continues after `step` keeps the records up to that step, so that no
    step stands there twice; with step 0 the file starts anew.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self.path = path
        self.records: list[Record] = []
        if step and path.exists():
            self.records = [r for r in _read(path) if r["step"] <= step]
        with atomic_path(path) as tmp:
            tmp.write_text("".join(map(_line, self.records)), encoding="utf-8")

    def append(self, record: Record) -> None:
        """Writes one record. Raises UserError when the disk is full."""
        self.records.append(record)
        log.info("%s", "  ".join(f"{key} {_shown(value)}" for key, value in record.items()))
        try:
            with self.path.open("a", encoding="utf-8") as f:
                f.write(_line(record))
        except OSError as e:
            raise write_error(self.path, e) from e

    def sync(self) -> None:
        """Flushes to disk; done before a checkpoint, so that no step behind it can be missing."""
        sync(self.path)

    def column(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of the records that have `key`."""
        have = [r for r in self.records if key in r]
        return [r["step"] for r in have], [r[key] for r in have]


def plot(metrics: MetricsLog, path: Path) -> None:
    """Loss, learning rate and gradient norm by step, as a PNG."""
    from matplotlib.figure import Figure  # 0.3 s to import, needed once a run

    figure = Figure(figsize=(8, 9), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    panels[0].plot(*metrics.column("loss"), label="train")
    panels[0].plot(*metrics.column("eval_loss"), "o-", label="eval")
    panels[0].set_ylabel("loss (nats/token)")
    panels[0].legend()
    panels[1].plot(*metrics.column("lr"))
    panels[1].set_ylabel("learning rate")
    panels[2].plot(*metrics.column("grad_norm"))
    panels[2].set_ylabel("gradient norm before clipping")
    panels[2].set_xlabel("step")
    with atomic_path(path) as tmp:
        figure.savefig(tmp, format="png", dpi=120)


def _read(path: Path) -> list[Record]:
    """All records; a last line cut short by a kill is dropped."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as e:
        raise UserError(f"{path} is damaged ({e}); remove it to continue without its past") from e


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
