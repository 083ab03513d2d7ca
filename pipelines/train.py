"""Trains a small decoder on an output folder.

python -m pipelines.train --config T.yaml [--steps 100 ...]
"""

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pipelines.common import parse_config, run
from training import TrainConfig, TrainResult, train

DESCRIPTION = "Trains a small decoder on the MindRecord shards of an output folder."
PLAIN_EVERY = 30.0  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and prints the losses."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    config = parse_config(TrainConfig, argv, "mindprep train", DESCRIPTION)
    print(summary(train_with_progress(config)))
    return 0


def train_with_progress(config: TrainConfig) -> TrainResult:
    """`training.train` with a bar on a terminal, else a plain line every 30 seconds."""
    console = Console(file=sys.stderr)
    if console.is_terminal:
        columns = (
            TextColumn("train"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("train", total=config.steps, told="compiling")
            return train(
                config, lambda r: bar.update(task, completed=r["step"], told=_line(r, config))
            )
    said = time.monotonic()

    def say(record: dict[str, Any]) -> None:
        nonlocal said
        if time.monotonic() - said >= PLAIN_EVERY:
            said = time.monotonic()
            print(_line(record, config), file=sys.stderr, flush=True)

    return train(config, say)


def _line(record: dict[str, Any], config: TrainConfig) -> str:
    return (
        f"step {record['step']}/{config.steps} loss {record['loss']:.4f} lr {record['lr']:.2e} "
        f"grad {record['grad_norm']:.2f} {record['tokens_per_s']:.0f} tokens/s"
    )


def summary(result: TrainResult) -> str:
    """Losses before and after, and the paths."""
    lines = [f"steps      {result.steps}"]
    if result.first_loss is not None and result.last_loss is not None:
        lines.append(f"train loss {result.first_loss:.4f} -> {result.last_loss:.4f}")
    if result.eval_before is not None and result.eval_after is not None:
        lines.append(f"eval loss  {result.eval_before:.4f} -> {result.eval_after:.4f}")
    lines += [
        f"metrics    {result.metrics_path}",
        f"plot       {result.plot_path}",
        f"checkpoint {result.checkpoint_path}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
