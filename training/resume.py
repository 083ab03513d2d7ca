"""Where a run goes on from: its newest checkpoint, or the weights of another model."""

from pathlib import Path

import numpy as np

from dataprep.errors import UserError
from training.build import Built
from training.checkpoint import Checkpoint, check_same_run, load_latest
from training.comm import Comm
from training.config import TrainConfig
from training.data import Loader
from training.optimizer import Optimizer
from training.reduce import gather_numbers
from training.weights import open_weights


def find_own(config: TrainConfig, batches: Loader) -> Checkpoint | None:
    """The newest checkpoint in save_dir; None when there is none.

    Raises UserError when it does not belong to this run, or the run may not continue.
    """
    found = load_latest(Path(config.save_dir))
    if found is None:
        return None
    if not config.resume:
        raise UserError(
            f"resume is False, but {config.save_dir} holds checkpoints; choose another save_dir, "
            "or remove them"
        )
    check_same_run(found, config, batches.state(), batches.step_rows)
    return found


def load_weights(config: TrainConfig, built: Built, optimizer: Optimizer) -> None:
    """Starts from the weights in `load_checkpoint`, if it is given; adapters start anew.

    Raises UserError when they are of another model.
    """
    if config.load_checkpoint is None:
        return
    weights = open_weights(Path(config.load_checkpoint), config.model)
    built.restore_frozen(weights.read, adapters=False)
    if config.lora is None:  # else adapters are all that is trained
        optimizer.load_weights(weights.read)


def check_agreed(comm: Comm, step: int, consumed: int, save_dir: Path) -> None:
    """Raises UserError unless all processes are at the same step and rows; all call this."""
    places = gather_numbers(comm.world, [step, consumed])
    if (places != places[0]).any():
        steps = ", ".join(f"{at:.0f}" for at in np.unique(places[:, 0]))
        raise UserError(
            f"the processes would continue from different checkpoints in {save_dir} (steps "
            f"{steps}); give a save_dir that all see alike, and run again"
        )
