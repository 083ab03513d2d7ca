"""The loader: one call from an output folder, or several, to the batches of one rank.

    loader = Loader("out/corpus", rank=0, ranks=2, batch_size=8, seed=17)
    for batch in loader:                      # without end, epoch after epoch
        ...                                   # int32 [8, S] each, see derive.py
        state = loader.state()                # the place behind this batch, for a checkpoint

    manifest -> folders.py   shards there and whole, enough open files, folders that agree
    order    -> order.py, mix.py     which row comes when; `consumed` is the whole state
    rows     -> readers.py   MindDataset, or the memory-mapped reader without MindSpore
    batch    -> derive.py    equal arrays for every column preset

`import training.data` and a loader with reader="direct" load no MindSpore.
"""

import logging
import operator
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.errors import UserError
from training import order
from training.config import Folder, ReaderName
from training.derive import IGNORE, Batch
from training.folders import Split, mix_fingerprint, open_splits
from training.mix import mix_of
from training.order import Epoch, epoch_at, spans, steps_until
from training.readers import check_mindspore, mind_dataset, open_readers
from training.stream import stream

Data = str | Path | Sequence[Folder]
PREFETCH = 16  # MindSpore's own default
SPAN = 1 << 12  # positions of the order that are computed at a time
MAX_CONSUMED = 2**62
READERS: tuple[ReaderName, ...] = ("mindspore", "direct")
log = logging.getLogger(__name__)


class Loader:
    """Batches of one rank of several, without end.

    Every rank gets equally many rows, and all ranks together each row of an epoch once, but for
    those that fill no step (`trimmed`). The arrays of a batch are parts of larger ones, of some
    batches: to keep one for long, copy it.
    """

    consumed: int
    """Rows behind, read by any rank or trimmed, since the start."""

    def __init__(
        self,
        data: Data,
        *,
        rank: int = 0,
        ranks: int = 1,
        batch_size: int = 8,
        seed: int | None = None,
        consumed: int = 0,
        split: str = "train",
        reader: ReaderName = "mindspore",
        workers: int = 1,
        prefetch: int = PREFETCH,
        vocab_size: int | None = None,
    ) -> None:
        """Checks all that can be checked before a shard is opened.

        rank, ranks: which of how many readers this is; each gets every `ranks`-th row of a step.
        batch_size: rows of this rank in a step.
        seed: of each epoch's order, 0 to 2^63 - 1; None: rows in stored order.
        consumed: rows behind since the start, of all ranks, as `state` has it.
        reader: see readers.py. workers: its threads; one is enough unless a row is trained in
            less than 0.1 ms.
        prefetch: blocks that MindSpore holds ready; a block has as many batches as come to 0.5 MB
            as they are stored, or one. Its setting for all pipelines is left as it was.
        vocab_size: ids must be below; None: the tokenizer's vocabulary.

        Raises UserError when a folder, a number or this machine does not allow it.
        """
        rank, ranks, batch_size, consumed, workers, prefetch = (
            _whole(name, value)
            for name, value in {
                "rank": rank,
                "ranks": ranks,
                "batch_size": batch_size,
                "consumed": consumed,
                "data_workers": workers,
                "prefetch": prefetch,
            }.items()
        )
        seed = None if seed is None else _whole("seed", seed)
        if reader not in READERS:
            raise UserError(f"reader is {reader!r}: give one of {', '.join(READERS)}")
        if vocab_size is not None and _whole("vocab_size", vocab_size) < 1:
            raise UserError(f"vocab_size is {vocab_size}: give a number above 0, or none")
        if not 0 <= rank < ranks:
            raise UserError(f"rank is {rank} of {ranks}: give 0 to {ranks - 1}")
        for name, value in {"batch_size": batch_size, "prefetch": prefetch}.items():
            if value < 1:
                raise UserError(f"{name} is {value}: give a number above 0")
        if seed is not None and not 0 <= seed <= order.MAX_SEED:
            raise UserError(f"seed is {seed}: give a number from 0 to {order.MAX_SEED}, or none")
        if not 0 <= consumed <= MAX_CONSUMED:
            raise UserError(f"consumed is {consumed}: give 0 or more rows")
        self.splits = open_splits(data, split)
        self.mix = mix_of([s.rows for s in self.splits], [s.weight for s in self.splits], seed)
        self.fingerprint = mix_fingerprint(self.splits)
        self.rank, self.ranks, self.batch_size = rank, ranks, batch_size
        self._workers = workers
        self._readers = open_readers(self.splits, reader, workers, prefetch, vocab_size)
        self._batches: Generator[Batch, None, None] | None = None
        self._move(consumed)

    @property
    def rows(self) -> int:
        """Rows of a whole epoch, those that are trimmed included."""
        return self.mix.rows

    @property
    def step_rows(self) -> int:
        """Rows that all ranks together take in a step."""
        return self.ranks * self.batch_size

    @property
    def epoch(self) -> Epoch:
        """Of the next batch: its number, and the steps and rows that are left in it."""
        return epoch_at(self.consumed, self.rows, self.step_rows)

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Batch:
        """The next batch. Raises UserError when a shard is damaged or an id is not allowed."""
        if self._batches is None:
            self._batches = self._read()
        try:
            batch = next(self._batches)
        except BaseException:
            self.close()  # so that another try begins at this place again, and does not just end
            raise
        self.consumed += self.step_rows
        if self.consumed > self._last:
            self._move(self.consumed)
        return batch

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends threads and closes files; another batch would start them again."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None

    def steps_until(self, epochs: int) -> int:
        """Steps that are left until `epochs` whole epochs are read, counted from the start."""
        return steps_until(epochs, self.consumed, self.rows, self.step_rows)

    def trimmed(self) -> list[str]:
        """`FILE row I` of the rows at the present epoch's end that are not read."""
        return self._named(self.epoch.number, self.rows - self.epoch.trimmed_rows)

    def _named(self, epoch: int, first: int) -> list[str]:
        """Rows of an epoch from a position on."""
        folders, rows = self.mix.rows_at(epoch, np.arange(first, self.rows))
        return [self.splits[f].named(row) for f, row in zip(folders.tolist(), rows.tolist())]

    def state(self) -> dict[str, Any]:
        """Where the reading stands, for JSON: the next batch is the one behind the last given.

        It is the same for every rank, and valid for any number of ranks and any batch size.
        """
        return {
            "consumed": self.consumed,
            "data": self.fingerprint,
            "split": self.splits[0].name,
            "seed": self.mix.seed,
            "order": order.NAME,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken.

        Where a larger step than before does not fit into the rest of the epoch, that rest is not
        read, and a warning names it. Raises UserError when it is of other data, another split,
        seed, or order of rows.
        """
        mine = self.state()
        if not isinstance(state, Mapping):
            raise UserError(f"the loader's state is {state!r:.60}, no mapping; start over")
        if state.keys() != mine.keys():
            raise UserError(
                f"the loader's state has the keys {sorted(state)}, not {sorted(mine)}: damaged, or "
                "of another version; start over"
            )
        for key, told in {
            "data": "data set (the manifests' fingerprints differ)",
            "split": "split",
            "seed": "seed",
            "order": "version's order of rows",
        }.items():
            if state[key] != mine[key]:
                raise UserError(
                    f"the loader's state is of another {told}: {key} is {state[key]} there and "
                    f"{mine[key]} here; use the same again, or start over"
                )
        consumed = state["consumed"]
        good = isinstance(consumed, int) and not isinstance(consumed, bool)
        if not good or not 0 <= consumed <= MAX_CONSUMED:
            raise UserError(f"the loader's state is damaged: consumed is {consumed!r}; start over")
        self.close()
        self._move(consumed)
        if self.consumed > consumed:
            epoch, first = divmod(consumed, self.rows)
            rest = self._named(epoch, first)
            told = f"{', '.join(rest[:8])}{', …' if len(rest) > 8 else ''}"
            log.warning(
                "%d rows at the end of epoch %d do not fill a step of %d and are not read: %s",
                *(len(rest), epoch, self.step_rows, told),
            )

    def mind_dataset(self, columns: Sequence[str] | None = None) -> Any:
        """The rest of this epoch for this rank as a ds.MindDataset of stored columns, batched.

        columns: those wanted; None: all, in the manifest's order. It holds 40 bytes for each row
        number, and does not move the loader: for the next epoch ask a loader whose `consumed` is
        there. Raises UserError for a mix, which is no single MindDataset.
        """
        if len(self.splits) > 1:
            raise UserError("a mix of folders is no single MindDataset; iterate over the loader")
        (split,) = self.splits
        check_mindspore(self.splits, self._workers)
        if split.weight > 1:
            raise UserError("a folder of weight above 1 is no single MindDataset; iterate over it")
        now = self.epoch
        positions = now.position + self.rank + self.ranks * np.arange(now.steps * self.batch_size)
        rows = self.mix.folder_order(0, now.number, positions)
        names = list(split.manifest.columns if columns is None else columns)
        dataset = mind_dataset(split.files, names, rows, self._workers)
        return dataset.batch(self.batch_size, drop_remainder=True)

    def _move(self, consumed: int) -> None:
        """To the next step's first row, which is another epoch's where too few are left."""
        now = epoch_at(consumed, self.rows, self.step_rows)
        self.consumed = now.number * self.rows + now.position
        self._last = self.consumed + (now.steps - 1) * self.step_rows  # where the last step begins

    def _read(self) -> Generator[Batch, None, None]:
        """Batches from here on, in whole."""
        place = (self.consumed, self.rows, self.ranks, self.rank, self.batch_size, SPAN)
        return stream(self.mix, self._readers, partial(spans, *place), self.batch_size)


def eval_batches(
    splits: Sequence[Split],
    batch_size: int,
    limit: int,
    *,
    reader: ReaderName = "mindspore",
    workers: int = 1,
    vocab_size: int | None = None,
) -> Iterator[Batch]:
    """The first `limit` batches of all splits, in stored order; folders alternate evenly.

    A last batch that is not full is filled with rows without targets, so that every row counts
    and all batches have one shape. Raises UserError as Loader does.
    """
    mix = mix_of([split.rows for split in splits], [1.0] * len(splits), None)
    readers = open_readers(splits, reader, workers, PREFETCH, vocab_size)
    positions = np.arange(min(mix.rows, limit * batch_size))
    for batch in stream(mix, readers, lambda: iter([(0, positions)]), batch_size):
        missing = batch_size - len(batch["input_ids"])
        fills = {name: IGNORE if name == "labels" else 0 for name in batch}
        yield {
            name: np.pad(rows, ((0, missing), (0, 0)), constant_values=fills[name])
            for name, rows in batch.items()
        }


def _whole(name: str, value: Any) -> int:
    """Any integer as a plain one, so that a state is JSON. Raises UserError for another thing."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}: give a whole number") from None
