"""What a run came to, from its metrics."""

from dataclasses import dataclass
from pathlib import Path

from training import metrics


@dataclass(frozen=True)
class TrainResult:
    """Losses are nats per valid target."""

    steps: int
    """Optimizer steps done, those before a resume included."""
    first_loss: float | None
    """Of step 1; None, like every figure here, when metrics.jsonl no longer has it."""
    last_loss: float | None
    eval_before: float | None
    """Before the first step; None without an evaluation."""
    eval_after: float | None
    metrics_path: Path
    plot_path: Path
    checkpoint_path: Path


def sum_up(log: metrics.MetricsLog, step: int, checkpoint_path: Path) -> TrainResult:
    """After `step` steps; draws the plot, if this is the process that writes."""
    plot_path = log.path.with_name("metrics.png")
    if log.writes:
        metrics.plot(log, plot_path)
    losses = dict(zip(*log.column("loss"), strict=True))
    evals = dict(zip(*log.column("eval_loss"), strict=True))
    return TrainResult(
        steps=step,
        first_loss=losses.get(1),
        last_loss=losses.get(step),
        eval_before=evals.get(0),
        eval_after=evals.get(step),
        metrics_path=log.path,
        plot_path=plot_path,
        checkpoint_path=checkpoint_path,
    )
