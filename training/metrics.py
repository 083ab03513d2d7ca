"""One JSON line, one log line and one TensorBoard event a step, and a plot of them.

    {"step": 0, "eval_loss": 8.32}                                     before the first step
    {"step": 1, "loss": 8.33, "lr": 0.0003, "grad_norm": 1.9, "tokens_per_s": 4100.0, "mfu": null,
     "memory_mib": 912.5, "comm_share": 0.08, "data_share": 0.002, "valid_tokens": 4072,
     "consumed_rows": 8}                "eval_loss" when evaluated, "loss_scale" in float16, and
                                        "overflow": true for a step that was left out

`loss` and `eval_loss` are nats per valid target; `tokens_per_s` counts all slots of the rows, of
all replicas; `mfu` is the share of the devices' peak, null without peak_tflops; shares are of the
step's wall time. In JSON a number that is not finite is null.
"""

import json
import logging
import math
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import UserError
from dataprep.files import atomic_path, sync, write_error
from training.sections import ModelConfig

if TYPE_CHECKING:
    from training.events import EventFile

log = logging.getLogger(__name__)

Record = dict[str, Any]
MIB = 1 << 20


class MetricsLog:
    """Appends records to a JSON Lines file, and holds those of the whole run.

    Opening it for a run that continues after `step` keeps the records up to that step, so that no
    step stands there twice; with step 0 the file starts anew.
    """

    def __init__(
        self, path: Path, step: int = 0, *, writes: bool = True, tensorboard: bool = False
    ) -> None:
        """writes: False holds the records alone, for a process that is not the one that writes.

        tensorboard: write events too, into the same folder; see events.py.
        """
        self.path = path
        self.writes = writes
        self.records: list[Record] = []
        self._events: EventFile | None = None
        if step and path.exists():
            self.records = [r for r in _read(path) if r["step"] <= step]
        if not writes:
            return
        with atomic_path(path) as tmp:
            tmp.write_text("".join(map(_line, self.records)), encoding="utf-8")
        if tensorboard:
            from training import events  # 0.4 s to import

            self._events = events.EventFile(path.parent, step)

    def append(self, record: Record) -> None:
        """Writes one record. Raises UserError when the disk is full."""
        self.records.append(record)
        if not self.writes:
            return
        shown = (f"{key} {_shown(value)}" for key, value in record.items() if value is not None)
        log.info("%s", "  ".join(shown))
        try:
            with self.path.open("a", encoding="utf-8") as f:
                f.write(_line(record))
        except OSError as e:
            raise write_error(self.path, e) from e
        if self._events:
            self._events.append(record)

    def sync(self) -> None:
        """Flushes to disk; done before a checkpoint, so that no step behind it can be missing."""
        if self.writes:
            sync(self.path)
        if self._events:
            self._events.sync()

    def column(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of the records that have `key`."""
        have = [r for r in self.records if r.get(key) is not None]
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


def flops_per_token(config: ModelConfig, vocab_size: int, seq_length: int) -> float:
    """Floating-point operations that training takes for a token: 6 N + 12 L H Q T.

    PaLM's count (arXiv:2204.02311, appendix B), forward and backward. N: weights that a token is
    multiplied by, so the head is among them and the look-up of an embedding is not; L layers, H
    query heads of Q channels, T tokens of a row. Attention counts as if it saw the whole row, and
    what is computed again in the backward pass does not count.
    """
    width, heads = config.hidden_size, config.num_heads
    attention = 2 * width * width + 2 * width * (width * config.n_kv_heads // heads)
    layer = attention + 3 * width * config.intermediate_size
    weights = config.num_layers * layer + vocab_size * width
    return 6.0 * weights + 12.0 * config.num_layers * width * seq_length


def utilization(
    tokens_per_s: float, flops: float, devices: int, peak_tflops: float | None
) -> float | None:
    """Model FLOPs utilization (MFU): the share of the devices' peak that tokens at this rate need.

    flops: of a token. peak_tflops: of one device, 10^12 operations a second; None: not known.
    """
    return None if peak_tflops is None else tokens_per_s * flops / (devices * peak_tflops * 1e12)


def memory_mib() -> float:
    """Memory of this process now, in MiB: on a device what is allocated there, else resident."""
    import mindspore as ms

    if ms.get_context("device_target") != "CPU":
        return ms.runtime.memory_allocated() / MIB  # Ascend: not verified
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB
    except FileNotFoundError:  # not Linux: the largest it ever was
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / MIB if sys.platform == "darwin" else peak / 1024


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
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
