"""The training run: batches in, one optimizer step after another, checkpoints and metrics out.

A run that was killed continues from its newest checkpoint with the same losses and weights, bit
for bit, as one that was not. The same code runs in one process and in each of many; rank 0 alone
writes metrics.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from dataprep.errors import UserError
from training import metrics
from training.build import Built, build, check_data
from training.checkpoint import Checkpoint, TrainState, load_latest, step_folder
from training.comm import open_comm
from training.config import TrainConfig
from training.culprit import describe
from training.data import Loader
from training.derive import Batch
from training.evaluation import Evaluation
from training.hold import hold
from training.launch import join, processes
from training.lora import dropout_seed, set_dropout_seed
from training.mesh import make_mesh
from training.optimizer import Optimizer
from training.order import Epoch
from training.outcome import TrainResult, sum_up
from training.profile_steps import Phases
from training.readers import cut
from training.reduce import step_totals
from training.resume import check_agreed, find_own, load_weights
from training.saver import Saver
from training.scale import LossScale
from training.schedule import learning_rate

log = logging.getLogger(__name__)
MAX_SKIPPED = 16  # steps left out for values that are not finite, before a run gives up


def train(
    config: TrainConfig, on_step: Callable[[metrics.Record], None] | None = None
) -> TrainResult:
    """Trains, or continues to train, until all steps are done.

    `on_step` gets each step's record (see metrics.py) after it is written and after the step's
    checkpoint, if one is due, has been begun. Raises UserError when the data or a checkpoint cannot
    be used, the disk is full, or the loss is not finite.
    """
    run = Trainer(config)
    with run:
        if run.step == 0:
            run.record({"step": 0}, evaluate=True)
        while run.step < config.steps:
            run.saver.check()
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
        """What can be checked without the other processes is checked before they are met."""
        self.config = config
        self.save_dir = Path(config.save_dir)
        rank, size = processes()
        self.mesh = make_mesh(config.parallel, size, rank)
        self.batches = Loader(
            config.data,
            rank=self.mesh.dp_rank,
            ranks=self.mesh.dp,
            batch_size=config.rows_per_step,
            seed=config.shuffle_seed,
            reader=config.reader,
            workers=config.data_workers,
            vocab_size=config.model.vocab_size,
        )
        self.evaluation = Evaluation(config, self.batches.splits, self.mesh)
        manifest = self.batches.splits[0].manifest
        self.vocab_size, self.seq_length = check_data(config.model, manifest)
        if join() != (rank, size):
            raise UserError(
                f"this process takes itself for number {rank} of {size}, and the others do not; "
                "on several machines give msrun --node_rank"
            )
        with ExitStack() as closing:
            if rank == 0:
                closing.callback(os.close, hold(self.save_dir))
            self._begin(rank, size)
            self._closing = closing.pop_all()

    def _begin(self, rank: int, size: int) -> None:
        """The model, as it was drawn, saved or loaded; the others have been met."""
        config = self.config
        found = find_own(config, self.batches)
        self.saver = Saver(self.save_dir, rank, size, config.keep, config.async_save)
        self.comm = open_comm(self.mesh)
        self.built = self._build()
        self.optimizer = Optimizer(
            self.built.model.trainable_params(),
            config.optimizer,
            self.mesh,
            self.comm,
            self.built.layout,
            config.parallel.enable_parallel_optimizer,
            config.parallel.bucket_mib,
        )
        self.flops = metrics.flops_per_token(config.model, self.vocab_size, self.seq_length)
        self.scale = LossScale.of(config.precision, config.batch_size * self.seq_length)
        self.phases = Phases(self.save_dir, rank, config.profile)
        self.step = self.updates = 0
        self.skipped: list[int] = []
        self.checkpoint_path: Path | None = None
        if found is not None:
            self._restore(found)
            log.info("continuing after step %d from %s", self.step, found.path)
        else:
            load_weights(config, self.built, self.optimizer)
        self._check_agreed()
        self.metrics = self._open_metrics()
        self._greet()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._closing:
            self.batches.close()
            self.phases.close()
            if kind is None:
                self.saver.wait()
            elif not self.saver.abandon():
                self._closing.pop_all()  # held until this process ends: its thread still writes
            if kind is KeyboardInterrupt and self.mesh.rank == 0:
                newest = self.saver.newest() or "none, so a new run begins at step 0"
                log.warning("stopped after step %d; the newest checkpoint is %s", self.step, newest)

    def advance(self) -> metrics.Record:
        """One optimizer step on the next rows; returns its record."""
        while True:
            began = time.perf_counter()
            self.comm.take_seconds()  # of an evaluation, which is no part of the step
            with self.phases("data"):
                epoch, batch = self._next_batch()
            with self.phases("forward and backward"):
                micro_batches = cut(batch, self.config.batch_size)
                sums = self.built.runner.run(micro_batches, self.scale.factor)
            with self.phases("reduce"):
                loss, valid = step_totals(self.comm, sums.loss_sum, sums.valid_tokens)
                loss /= max(valid, 1)
                share = 1 / (max(valid, 1) * self.scale.factor)
                norm = self.optimizer.reduce(sums.gradients, share)
            rate = learning_rate(self.step + 1, self.config.steps, self.config.optimizer)
            record: metrics.Record = {
                "step": self.step + 1,
                "loss": loss,
                "lr": rate,
                "grad_norm": norm,
            }
            if math.isfinite(loss) and math.isfinite(norm):
                with self.phases("update"):
                    self.updates += 1
                    self.optimizer.update(rate, self.updates, norm)
                self.scale.succeeded()
            elif math.isfinite(loss) and self.scale.falls:
                record |= {"grad_norm": None, "overflow": True}
                self.scale.overflowed()
            else:
                self._not_finite(loss, norm, epoch)
                continue
            self.step += 1
            return self._completed(record, batch, valid, began)

    def record(self, record: metrics.Record, evaluate: bool) -> None:
        """Writes a step's record, with the eval loss added if asked for and there is a split."""
        if evaluate and self.evaluation:
            if self._has_dropout:
                set_dropout_seed(self.built.model, None)
            with self.phases("evaluate"):
                record["eval_loss"] = self.evaluation.loss(self.comm, self.built.runner)
        if len(record) > 1:  # step 0 may have nothing to tell
            self.metrics.append(record)

    def save(self) -> None:
        """Begins to write a checkpoint of the present step, when the one before is there."""
        self.metrics.sync()
        state = TrainState(
            step=self.step,
            consumed_rows=self.batches.consumed,
            epoch=self.batches.epoch.number,
            seed=self.config.seed,
            data=self.batches.fingerprint,
            config=asdict(self.config),
            order=self.batches.state()["order"],
            rows_per_step=self.batches.step_rows,
            seq_length=self.seq_length,
            updates=self.updates,
            skipped=list(self.skipped),
            loss_scale=self.scale.state(),
        )
        with self.phases("checkpoint"):
            self.saver.save(state, [*self.optimizer.pieces(), *self.built.frozen_pieces()])
        self.checkpoint_path = step_folder(self.save_dir, self.step)

    def result(self) -> TrainResult:
        """Draws the plot and sums the run up."""
        assert self.checkpoint_path is not None, "the last step was saved, or restored"
        return sum_up(self.metrics, self.step, self.checkpoint_path)

    @property
    def _has_dropout(self) -> bool:
        return self.config.lora is not None and self.config.lora.dropout > 0

    def _build(self) -> Built:
        config = self.config
        prepare = self._seed_dropout if self._has_dropout else None
        size = self.vocab_size, self.seq_length
        return build(config, *size, self.mesh, self.comm, prepare)

    def _restore(self, found: Checkpoint) -> None:
        """Weights, moments and the place in the data; steps that are left out stay so."""
        state = found.state
        # Also where the key is left out now: the next checkpoint is of the same run.
        began = state.config.get("load_checkpoint")
        self.config = replace(self.config, load_checkpoint=began)
        self.saver.continues(found.path)
        self.optimizer.restore(found.read)
        self.built.restore_frozen(found.read)
        self.scale.restore(state.loss_scale)
        self.batches.restore({**self.batches.state(), "consumed": state.consumed_rows})
        self.step, self.updates, self.checkpoint_path = state.step, state.updates, found.path
        self.skipped = sorted({*self.skipped, *state.skipped})

    def _check_agreed(self) -> None:
        check_agreed(self.comm, self.step, self.batches.consumed, self.save_dir)

    def _open_metrics(self) -> metrics.MetricsLog:
        path, writes = self.save_dir / "metrics.jsonl", self.mesh.rank == 0
        tensorboard = self.config.tensorboard
        return metrics.MetricsLog(path, self.step, writes=writes, tensorboard=tensorboard)

    def _greet(self) -> None:
        log.info(
            "%s weights here, %s of them trained; an epoch is %d steps of %d rows, and %d rows at "
            "its end are not read",
            f"{sum(w.size for w in self.built.model.get_parameters()):,}",
            f"{sum(w.size for w in self.optimizer.params):,}",
            self.batches.rows // self.batches.step_rows,
            self.batches.step_rows,
            self.batches.rows % self.batches.step_rows,
        )

    def _next_batch(self) -> tuple[Epoch, Batch]:
        """The next rows of this replica, and the epoch before they were taken."""
        while self.batches.consumed in self.skipped:
            next(self.batches)
        return self.batches.epoch, next(self.batches)

    def _seed_dropout(self, micro_batch: int) -> None:
        """Tells dropout which rows of the step come; replicas take turns in them."""
        first = self.mesh.dp_rank + micro_batch * self.config.batch_size * self.mesh.dp
        seed = dropout_seed(self.config.seed, self.step)
        set_dropout_seed(self.built.model, seed, first, self.mesh.dp)

    def _completed(
        self, record: metrics.Record, batch: Batch, valid: int, began: float
    ) -> metrics.Record:
        """The record of a step, with what it took."""
        wall = time.perf_counter() - began
        spent = self.phases.take(self.step)
        tokens_per_s = batch["input_ids"].size * self.mesh.dp / wall
        peak, size = self.config.peak_tflops, self.mesh.size
        record |= {
            "tokens_per_s": tokens_per_s,
            "mfu": metrics.utilization(tokens_per_s, self.flops, size, peak),
            "memory_mib": metrics.memory_mib(),
            "comm_share": self.comm.take_seconds() / wall,
            "data_share": spent["data"] / wall,
            "valid_tokens": valid,
            "consumed_rows": self.batches.consumed,
        }
        if self.scale.dynamic:
            record["loss_scale"] = self.scale.value
        return record

    def _not_finite(self, loss: float, norm: float, epoch: Epoch) -> None:
        """Stops, or goes back and leaves the rows of this step out; all processes decide alike."""
        first = epoch.position
        positions = np.arange(first, first + epoch.step_rows)
        told = (
            f"step {self.step + 1} has loss {loss} and gradient norm {norm}, on "
            f"{describe(self.batches, epoch.number, positions)}"
        )
        if self.config.on_nonfinite == "stop" or len(self.skipped) == MAX_SKIPPED:
            rate = self.config.optimizer.learning_rate
            raise UserError(
                f"{told}; lower optimizer.learning_rate (now {rate}), look at these rows, or set "
                "on_nonfinite: skip; nothing of this step was kept"
                + (f"; {MAX_SKIPPED} steps were left out before" if self.skipped else "")
            )
        self.skipped = sorted({*self.skipped, epoch.number * self.batches.rows + first})
        self.saver.wait()  # until all processes see the same newest one
        found = load_latest(self.save_dir)
        if found is not None:
            self._restore(found)
            self.metrics = self._open_metrics()
        self._check_agreed()
        log.warning("%s; going on after step %d without these rows", told, self.step)


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
