"""The loss on rows that are held out."""

from collections.abc import Iterator, Sequence

from training.build import Runner
from training.comm import Comm
from training.config import TrainConfig
from training.data import eval_batches
from training.derive import Batch
from training.folders import Split, check_open_files, open_splits
from training.mesh import Mesh
from training.reduce import step_totals


class Evaluation:
    """The first micro batches of the eval split, which replicas share out; False without any."""

    def __init__(self, config: TrainConfig, splits: Sequence[Split], mesh: Mesh) -> None:
        """splits: what is trained on. Raises UserError when the machine could not open both."""
        self._config, self._mesh = config, mesh
        rows = sum(split.manifest.rows("eval") for split in splits)
        asked = rows > 0 and config.eval_batches > 0
        self._splits = open_splits(config.data, "eval", skip_empty=True) if asked else []
        if asked and config.reader == "mindspore":
            check_open_files([*splits, *self._splits], config.data_workers)

    def __bool__(self) -> bool:
        return bool(self._splits)

    def loss(self, comm: Comm, runner: Runner) -> float:
        """Mean over all valid targets, in nats; the same on all processes, which all call this."""
        total, count = step_totals(comm, *runner.evaluate(self._mine()))
        return total / max(count, 1)

    def _mine(self) -> Iterator[Batch]:
        config, mesh = self._config, self._mesh
        batches = eval_batches(
            self._splits,
            config.batch_size,
            config.eval_batches,
            reader=config.reader,
            workers=config.data_workers,
            vocab_size=config.model.vocab_size,
        )
        return (batch for i, batch in enumerate(batches) if i % mesh.dp == mesh.dp_rank)
