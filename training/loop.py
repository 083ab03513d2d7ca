"""The training run: batches in, one optimizer step after another, checkpoints and metrics out.

A run that was killed continues from its newest checkpoint with the same losses and weights, bit
for bit, as one that was not.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mindspore import Parameter, Tensor

from dataprep.errors import UserError
from dataprep.manifest import TokenizerInfo
from training import checkpoint, metrics
from training.config import TrainConfig
from training.data import Loader, eval_batches
from training.folders import check_open_files, open_splits
from training.gradients import accumulate, gradient_function, loss_function, tensors
from training.model import Decoder, initialize
from training.optimizer import AdamW, clip
from training.order import Epoch
from training.schedule import learning_rate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a run came to. Losses are nats per valid target."""

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


def train(
    config: TrainConfig, on_step: Callable[[metrics.Record], None] | None = None
) -> TrainResult:
    """Trains, or continues to train, until all steps are done.

    `on_step` gets each step's record (see metrics.py) after it is written and after the step's
    checkpoint, if one is due. Raises UserError when the data or a checkpoint cannot be used, the
    disk is full, or the loss is not finite.
    """
    run = Trainer(config)
    with run.batches:
        if run.step == 0:
            run.record({"step": 0}, evaluate=True)
        while run.step < config.steps:
            record = run.advance()
            last = run.step == config.steps
            run.record(record, evaluate=last or _due(run.step, config.eval_interval))
            if last or _due(run.step, config.save_interval):
                run.save()
            if on_step:
                on_step(record)
    return run.result()


class Trainer:
    """A run's model, optimizer, place in the data and metrics; restored if save_dir has them."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.save_dir = Path(config.save_dir)
        self.batches = Loader(
            config.data,
            batch_size=config.rows_per_step,
            seed=config.shuffle_seed,
            reader=config.reader,
            workers=config.data_workers,
            vocab_size=config.model.vocab_size,
        )
        self.has_eval = any(split.manifest.rows("eval") for split in self.batches.splits)
        if self.has_eval and config.eval_batches and config.reader == "mindspore":
            held_out = open_splits(config.data, "eval", skip_empty=True)
            check_open_files([*self.batches.splits, *held_out], config.data_workers)
        self.vocab_size = _vocab_size(config, self.batches.splits[0].manifest.tokenizer)
        self.model = Decoder(config.model, self.vocab_size, config.compute_dtype)
        initialize(self.model, config.model, config.seed)
        self.optimizer = AdamW(self.model.trainable_params(), config.optimizer)
        self.gradients = gradient_function(self.model, config.mode)
        self.loss = loss_function(self.model, config.mode)
        self.step = 0
        self.checkpoint_path: Path | None = None
        self._restore()
        self.metrics = metrics.MetricsLog(self.save_dir / "metrics.jsonl", self.step)
        log.info(
            "%s parameters; an epoch is %d steps of %d rows, and %d rows at its end are not read",
            f"{sum(w.size for w in self.optimizer.weights):,}",
            self.batches.rows // config.rows_per_step,
            config.rows_per_step,
            self.batches.rows % config.rows_per_step,
        )

    def advance(self) -> metrics.Record:
        """One optimizer step on the next rows; returns its record."""
        began = time.perf_counter()
        epoch = self.batches.epoch
        batch = next(self.batches)
        size = self.config.batch_size
        micro_batches = (
            {name: rows[i : i + size] for name, rows in batch.items()}
            for i in range(0, self.config.rows_per_step, size)
        )
        loss, valid_tokens, gradients = accumulate(self.gradients, micro_batches)
        clipped, norm = clip(gradients, self.config.optimizer.max_grad_norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._diverged(loss, norm, epoch)
        self.step += 1
        rate = learning_rate(self.step, self.config.steps, self.config.optimizer)
        self.optimizer.update(clipped, rate, self.step)
        return {
            "step": self.step,
            "loss": loss,
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_s": batch["input_ids"].size / (time.perf_counter() - began),
            "valid_tokens": valid_tokens,
            "consumed_rows": self.batches.consumed,
        }

    def record(self, record: metrics.Record, evaluate: bool) -> None:
        """Writes a step's record, with the eval loss added if asked for and there is a split."""
        if evaluate and self.config.eval_batches and self.has_eval:
            record["eval_loss"] = self._evaluate()
        if len(record) > 1:  # step 0 may have nothing to tell
            self.metrics.append(record)

    def save(self) -> None:
        """Publishes a checkpoint of the present step."""
        self.metrics.sync()
        state = checkpoint.TrainState(
            step=self.step,
            consumed_rows=self.batches.consumed,
            epoch=self.batches.epoch.number,
            seed=self.config.seed,
            data=self.batches.fingerprint,
            config=asdict(self.config),
            order=self.batches.state()["order"],
        )
        weights, moments = map(_arrays, (self.optimizer.weights, self.optimizer.moments))
        self.checkpoint_path = checkpoint.save(
            self.save_dir, state, weights, moments, self.config.keep
        )

    def result(self) -> TrainResult:
        """Draws the plot and sums the run up."""
        plot_path = self.save_dir / "metrics.png"
        metrics.plot(self.metrics, plot_path)
        assert self.checkpoint_path is not None, "the last step was saved, or restored"
        losses = dict(zip(*self.metrics.column("loss"), strict=True))
        evals = dict(zip(*self.metrics.column("eval_loss"), strict=True))
        return TrainResult(
            steps=self.step,
            first_loss=losses.get(1),
            last_loss=losses.get(self.step),
            eval_before=evals.get(0),
            eval_after=evals.get(self.step),
            metrics_path=self.metrics.path,
            plot_path=plot_path,
            checkpoint_path=self.checkpoint_path,
        )

    def _restore(self) -> None:
        """Loads the newest checkpoint of save_dir, after checking that it belongs to this run."""
        if not self.config.resume:
            if checkpoint.list_checkpoints(self.save_dir):
                raise UserError(
                    f"resume is False, but {self.save_dir} holds checkpoints; choose another "
                    "save_dir, or remove them"
                )
            return
        found = checkpoint.load_latest(self.save_dir)
        if found is None:
            return
        checkpoint.check_same_run(found, self.config, self.batches.state())
        for weight in self.optimizer.weights:
            weight.set_data(Tensor(found.weights[weight.name]))
        for moment in self.optimizer.moments:
            moment.set_data(Tensor(found.moments[moment.name]))
        self.batches.restore({**self.batches.state(), "consumed": found.state.consumed_rows})
        self.step, self.checkpoint_path = found.state.step, found.path
        log.info("continuing after step %d from %s", self.step, found.path)

    def _evaluate(self) -> float:
        """Mean loss over all valid targets of the first eval batches."""
        total, count = 0.0, 0
        size, limit = self.config.batch_size, self.config.eval_batches
        for batch in eval_batches(
            self.config.data,
            size,
            limit,
            reader=self.config.reader,
            workers=self.config.data_workers,
            vocab_size=self.vocab_size,
        ):
            loss, valid = self.loss(*tensors(batch))
            total += float(loss.asnumpy())
            count += int(valid.asnumpy())
        return total / max(count, 1)

    def _diverged(self, loss: float, norm: float, epoch: Epoch) -> UserError:
        first = epoch.position
        return UserError(
            f"step {self.step + 1} has loss {loss} and gradient norm {norm}, on rows {first} to "
            f"{first + epoch.step_rows - 1} of epoch {epoch.number} in reading order; lower "
            f"optimizer.learning_rate (now {self.config.optimizer.learning_rate}) or look at "
            f"these rows; nothing of this step was kept"
        )


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _arrays(parameters: Sequence[Parameter]) -> checkpoint.Arrays:
    return {p.name: p.asnumpy() for p in parameters}


def _vocab_size(config: TrainConfig, tokenizer: TokenizerInfo) -> int:
    """The model's, or the tokenizer's when it has none."""
    needed, given = tokenizer.vocab_size, config.model.vocab_size
    if given is not None and given < needed:
        raise UserError(
            f"model.vocab_size is {given}, but the tokenizer of the data has {needed} ids; "
            "raise it, or leave it out"
        )
    return given or needed
