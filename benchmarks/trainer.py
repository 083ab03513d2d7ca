"""The trainer against a bare loop: step time, tokens a second, what data and the trainer cost.

    python -m benchmarks.trainer [--turns 16] [--modes pynative graph]

A decoder of 8.4 million parameters, 2048 tokens a step as 4 rows of 512, float32, one process.

    bare      the same model and loss, ms.value_and_grad and nn.AdamWeightDecay, batches that lie
              ready in memory; in graph mode the whole step is one ms.jit
    trainer   training.loop.Trainer: its loader over MindDataset, clipping by the global norm, the
              guard against values that are not finite, metrics.jsonl, TensorBoard events, the log

Both see the same batches, in one process, and each step ends when its weights are there. A turn is
trainer bare bare trainer, so that each goes once after itself and once after the other, which costs
some per cent: caches are cold. The overhead is the median of the turns' ratios, given with its 95 %
interval, since steps vary by a tenth and more on a shared machine; the data share is the median of
what the trainer says of itself.

Prints a table and the bounds. Exit code 1 when a bound is broken.
"""

import argparse
import contextlib
import itertools
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only; read when it is imported

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from benchmarks.common import CACHE, machine, table
from benchmarks.loader_data import SHARDS, documents, write_folder
from dataprep.pack import Pack
from training.config import TrainConfig
from training.data import Loader
from training.derive import Batch
from training.gradients import tensors
from training.loop import Trainer
from training.loss import token_losses
from training.model import Decoder, initialize
from training.sections import ModelConfig

SEQ_LENGTH, ROWS, VOCABULARY = 512, 4, 8192
MODEL = ModelConfig(hidden_size=256, num_layers=8, num_heads=8, n_kv_heads=4, intermediate_size=768)
TOKENS = 1 << 19  # of the data
SEED = 17
WARM_UP = 2  # steps, of which the first compiles
MODES = ("pynative", "graph")
MOST_OVERHEAD, MOST_DATA = 0.05, 0.02


@dataclass(frozen=True)
class Loop:
    """One of the two."""

    step: Callable[[], float]
    """Takes a step on the next batch; returns the share of it that the batch was waited for."""
    weights: list[Parameter]

    def timed(self) -> tuple[float, float]:
        """(seconds of a step until its weights are there, share of data)."""
        began = time.perf_counter()
        share = self.step()
        for weight in self.weights:
            weight.asnumpy()
        return time.perf_counter() - began, share


@dataclass
class Turns:
    """Seconds a step of both, two a turn, and the trainer's share of data."""

    bare: list[float] = field(default_factory=list)
    trainer: list[float] = field(default_factory=list)
    data: list[float] = field(default_factory=list)

    @property
    def overhead(self) -> float:
        """Of the trainer over the bare loop: the median of the turns' ratios, less 1."""
        return statistics.median(self._overheads)

    @property
    def overhead_range(self) -> tuple[float, float]:
        """Between which the true median lies, with 95 % confidence or all that the turns give.

        By order statistics, so no distribution is assumed: the k-th from either end, where the
        chance that fewer than k of n turns fall on one side of the median is at most 2.5 %.
        """
        ordered = sorted(self._overheads)
        n, k = len(ordered), 1
        while sum(math.comb(n, i) for i in range(k + 1)) * 0.5**n <= 0.025:
            k += 1
        return ordered[k - 1], ordered[-k]

    @property
    def _overheads(self) -> list[float]:
        bare, trainer = (
            [sum(pair) for pair in zip(x[::2], x[1::2], strict=True)]
            for x in (self.bare, self.trainer)
        )
        return [t / b - 1 for b, t in zip(bare, trainer, strict=True)]

    @property
    def data_share(self) -> float:
        """Median share of a step that the trainer waited for its batch."""
        return statistics.median(self.data)


def main() -> int:
    """Measures, prints, judges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=16, help="of two steps of each")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    args = parser.parse_args()
    turns = {mode: measure(mode, args.turns) for mode in args.modes}
    print(f"{machine()}\n\n{figures(turns)}\n")
    held = True
    for mode, seen in turns.items():
        for what, share, most in (
            ("overhead of the trainer over the bare loop", seen.overhead, MOST_OVERHEAD),
            ("share of a step that data takes", seen.data_share, MOST_DATA),
        ):
            verdict = "held" if share <= most else "BROKEN"
            print(f"{mode}: {what}: {share:.2%} (at most {most:.0%}) {verdict}")
            held &= share <= most
        low, high = seen.overhead_range
        print(f"{mode}: 95 % interval of the overhead: {low:.2%} to {high:.2%}")
    return 0 if held else 1


def measure(mode: str, turns: int) -> Turns:
    """Both by turns."""
    seen = Turns()
    with tempfile.TemporaryDirectory() as save_dir, trainer_loop(mode, save_dir) as ours:
        bare = bare_loop(mode)
        for loop in (bare, ours) * WARM_UP:
            loop.timed()
        for loop in (ours, bare, bare, ours) * turns:
            seconds, share = loop.timed()
            if loop is ours:
                seen.trainer.append(seconds)
                seen.data.append(share)
            else:
                seen.bare.append(seconds)
    return seen


def bare_loop(mode: str) -> Loop:
    """What a script does that has no trainer."""
    model = Decoder(MODEL, VOCABULARY)
    initialize(model, MODEL, SEED)
    weights = list(model.trainable_params())
    decaying = [w for w in weights if w.ndim > 1]
    groups = [
        {"params": decaying, "weight_decay": 0.1},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = nn.AdamWeightDecay(groups, 3e-4, 0.9, 0.95, 1e-8)

    def forward(
        ids: Tensor, positions: Tensor, segments: Tensor, labels: Tensor, mask: Tensor
    ) -> Tensor:
        loss, valid = token_losses(model(ids, positions, segments), labels, mask)
        return loss / valid

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(*batch: Tensor) -> Tensor:
        loss, found = gradients(*batch)
        optimizer(found)
        return loss

    function = ms.jit(step) if mode == "graph" else step
    batches = itertools.cycle(ready_batches())

    def take() -> float:
        loss = function(*tensors(next(batches)))
        assert np.isfinite(loss.asnumpy())
        return 0.0

    return Loop(take, weights)


def ready_batches() -> list[Batch]:
    """The first batches of the data, copied out of the reader's memory."""
    with Loader(data(), batch_size=ROWS, reader="direct") as loader:
        return [
            {name: rows.copy() for name, rows in batch.items()}
            for batch in itertools.islice(loader, loader.epoch.steps)
        ]


@contextlib.contextmanager
def trainer_loop(mode: str, save_dir: str) -> Iterator[Loop]:
    """The trainer's own steps, with all that `train` does about them but checkpoints."""
    config = TrainConfig(
        data=str(data()),
        save_dir=save_dir,
        model=MODEL,
        steps=10**6,
        batch_size=ROWS,
        eval_batches=0,
        mode=mode,
    )
    with Trainer(config) as run:

        def take() -> float:
            record = run.advance()
            run.record(record, evaluate=False)
            return record["data_share"]

        yield Loop(take, list(run.built.model.trainable_params()))


def data() -> Path:
    """An output folder of made documents, made once."""
    folder = CACHE / "trainer" / f"{SEQ_LENGTH}-{VOCABULARY}"
    if folder.is_dir():
        return folder
    tmp = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    pack = Pack(seq_length=SEQ_LENGTH)
    packed = [
        documents(np.random.default_rng([SEED, i]), pack, TOKENS, VOCABULARY) for i in range(SHARDS)
    ]
    write_folder(tmp, "mindformers", pack, packed, VOCABULARY)
    return tmp.rename(folder)


def figures(turns: dict[str, Turns]) -> str:
    """Medians: one row a mode and loop."""
    rows = []
    for mode, seen in turns.items():
        for name, seconds in (("bare", seen.bare), ("trainer", seen.trainer)):
            median = statistics.median(seconds)
            spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
            rows.append((mode, name, f"{median:.3f}", spread, f"{ROWS * SEQ_LENGTH / median:,.0f}"))
    return table(("mode", "loop", "s a step", "range", "tokens/s"), rows)


if __name__ == "__main__":
    sys.exit(main())
