"""Trains a small decoder on an output folder, in one process or several.

python -m pipelines.train --config T.yaml [--steps 100 ...]
python -m pipelines.train --workers 4 --config T.yaml
msrun --worker_num 4 --local_worker_num 4 --join True python -m pipelines.train --config T.yaml
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dataprep.errors import UserError
from pipelines.common import parse_config, run
from pipelines.launcher import launch, run_rank
from training.config import TrainConfig
from training.hold import hold
from training.launch import processes
from training.mesh import make_mesh

if TYPE_CHECKING:
    from training import TrainResult

DESCRIPTION = """Trains a small decoder on the MindRecord shards of an output folder.
--workers N starts N processes on this machine, which share the work as parallel.* says; their logs
are in save_dir/logs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and prints the losses: in this process, in several, or as one of them."""
    workers, args = take_workers(sys.argv[1:] if argv is None else argv)
    size = processes()[1]
    if size > 1 and workers > 1:
        raise UserError(f"--workers {workers} within {size} processes: leave it to msrun, or here")
    if size > 1:
        return run_rank(train_and_tell, args)
    config = parse_config(TrainConfig, args, "mindprep train", DESCRIPTION)
    make_mesh(config.parallel, workers, 0)  # or says at once why not
    if workers == 1:
        return train_and_tell(args)
    save_dir = Path(config.save_dir)
    os.close(hold(save_dir))  # another run's logs must not be written over; rank 0 holds it then
    return launch([sys.executable, "-m", "pipelines.train", *args], workers, save_dir / "logs")


def train_and_tell(argv: Sequence[str] | None) -> int:
    """Trains in this process; of several, only the first prints."""
    config = parse_config(TrainConfig, argv, "mindprep train", DESCRIPTION)
    rank = processes()[0]
    result = train_with_progress(config, quiet=rank > 0)
    if rank == 0:
        print(summary(result))
    return 0


def take_workers(args: Sequence[str]) -> tuple[int, list[str]]:
    """The number after --workers, 1 without, and the other arguments."""
    rest, given = list(args), None
    for i, arg in enumerate(args):
        if arg == "--workers":
            given, rest = "".join(args[i + 1 : i + 2]), [*args[:i], *args[i + 2 :]]
        elif arg.startswith("--workers="):
            given, rest = arg.partition("=")[2], [*args[:i], *args[i + 1 :]]
    if given is None:
        return 1, rest
    if not given.isdecimal() or int(given) == 0:
        raise UserError(f"--workers is {given!r}: give a number above 0")
    return int(given), rest


def train_with_progress(config: TrainConfig, quiet: bool = False) -> "TrainResult":
    """`training.train` with a bar on a terminal, else a log line a step; quiet: nothing."""
    from training import train  # loads MindSpore: seconds that a launcher does not need

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if quiet:
        return train(config)
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
                config, lambda r: bar.update(task, completed=r["step"], told=line(r, config))
            )
    log = logging.getLogger("training")
    before = log.level
    log.setLevel(logging.INFO)
    try:
        return train(config)
    finally:
        log.setLevel(before)


def line(record: dict[str, Any], config: TrainConfig) -> str:
    """A step's record in a few words, for beside the bar."""
    norm = record["grad_norm"]
    return (
        f"step {record['step']}/{config.steps} loss {record['loss']:.4f} lr {record['lr']:.2e} "
        f"grad {'overflow' if norm is None else f'{norm:.2f}'} "
        f"{record['tokens_per_s']:.0f} tokens/s"
    )


def summary(result: "TrainResult") -> str:
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
