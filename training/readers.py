"""Two ways to get rows in a given order out of the shards; both yield the same batches.

    mindspore   MindDataset over explicit lists of row numbers (SubsetSampler), MindSpore's threads
    direct      dataprep.mindrecord.IndexableSource: a memory map, no MindSpore, no open files

Each takes the row numbers of its split as an endless stream of arrays, and yields batches of at
most `batch` rows in that order. What it reads ahead is its own affair; the loader counts the rows
that it hands out.
"""

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np

from dataprep.errors import UserError
from dataprep.mindrecord import IndexableSource, map_ahead
from training.config import ReaderName
from training.derive import Batch, Derive, Int64
from training.folders import Split, check_open_files, check_workers, opens_early

# Row numbers that one MindDataset gets. It takes them as a list of Python numbers, 40 bytes each,
# and opening one takes 0.4 s for 1024 shards, so the first is small and the others are large.
FIRST_WINDOW, WINDOW = 1 << 14, 1 << 20
# Of stored columns that are read together: they stay in a core's cache, and a call costs little.
BLOCK_BYTES, BLOCK_ROWS = 1 << 19, 1 << 10


_SETTING = Lock()  # MindSpore's prefetch size is one for the whole process
NONE_NEAR: Int64 = np.zeros(0, np.int64)  # among row numbers: wait for no more, there are none near


class Reader(Protocol):
    """Reads one split in a given order."""

    def read(self, rows: Iterable[Int64], batch: int) -> Generator[Batch, None, None]:
        """Batches of at most `batch` rows, in the order of `rows`.

        Among the rows may be NONE_NEAR: what was read up to there is given out. A batch is asked
        for when it is due, so there are rows behind it.

        Raises UserError when a shard is damaged or a row holds what it must not.
        """
        ...


class MindSporeReader:
    """By MindDataset, one window of the order after another."""

    def __init__(self, split: Split, derive: Derive, workers: int, prefetch: int) -> None:
        self._split, self._derive = split, derive
        self._workers, self._prefetch = workers, prefetch

    def read(self, rows: Iterable[Int64], batch: int) -> Generator[Batch, None, None]:
        """See Reader."""
        early = opens_early(self._split, self._workers)
        opened = self._open(rows, batch)
        now = following = None
        try:
            while (now := following or next(opened, None)) is not None:
                following = None
                if isinstance(now, _Pipeline):
                    asked = False
                    for some, stored in now:
                        if early and now.ends_soon and not asked:
                            following, asked = next(opened, None), True
                        yield from cut(self._derive(stored, some), batch)
                    now.close()
        finally:
            for pipeline in (now, following):
                if isinstance(pipeline, _Pipeline):
                    pipeline.close()

    def _open(
        self, rows: Iterable[Int64], batch: int
    ) -> Iterator["_Pipeline | Literal['none near']"]:
        block = block_rows(self._split, batch)
        for window in windows(rows, batch, self._split.rows):
            if len(window):
                yield _Pipeline(self._split, window, block, self._workers, self._prefetch)
            else:
                yield "none near"


class _Pipeline:
    """MindSpore's threads at work on one window; yields (row numbers, stored columns) in blocks."""

    def __init__(self, split: Split, rows: Int64, block: int, workers: int, prefetch: int) -> None:
        import mindspore.dataset as ds

        self._split, self._rows, self._block, self._done = split, rows, block, 0
        with self._told(), _SETTING:
            dataset = mind_dataset(split.files, split.columns, rows, workers).batch(block)
            before = ds.config.get_prefetch_size()
            ds.config.set_prefetch_size(prefetch)  # global, and read when a pipeline starts
            try:
                # Without a copy: the arrays are MindSpore's own buffers, which they keep alive.
                self._blocks = dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
            finally:
                ds.config.set_prefetch_size(before)

    @property
    def ends_soon(self) -> bool:
        """Whether it is time to open the next one, for that takes a few milliseconds."""
        return len(self._rows) - self._done <= 4 * self._block

    def __iter__(self) -> Iterator[tuple[Int64, Batch]]:
        while True:
            with self._told():
                columns = next(self._blocks, None)
            if columns is None:
                return
            rows = self._rows[self._done : self._done + len(columns[0])]
            self._done += len(rows)
            yield rows, dict(zip(self._split.columns, columns, strict=True))

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self._blocks.stop()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """MindSpore's long errors become one line."""
        try:
            yield
        except (RuntimeError, ValueError) as e:  # the latter for a file that has gone
            cause = (str(e).partition("[ERROR] ")[2] or str(e)).splitlines()[0]
            raise UserError(
                f"cannot read the shards of {self._split.out_dir}: {cause} Run verify on it."
            ) from e


def mind_dataset(files: list[str], columns: list[str], rows: Int64, workers: int) -> Any:
    """A ds.MindDataset of these rows in this order; the file list is explicit, since MindSpore
    takes one name alone for all its siblings.
    """
    import mindspore.dataset as ds

    sampler = ds.SubsetSampler(rows.tolist())
    return ds.MindDataset(files, columns, sampler=sampler, num_parallel_workers=workers)


def windows(rows: Iterable[Int64], batch: int, limit: int) -> Iterator[Int64]:
    """The same stream in larger arrays: whole batches where possible, at most `limit` rows each;
    all that is there, and be it nothing, at NONE_NEAR.

    MindSpore refuses more row numbers than there are rows.
    """
    size = FIRST_WINDOW
    held: list[Int64] = []
    have = 0
    for some in rows:
        if not len(some):  # NONE_NEAR
            rest = np.concatenate([some, *held])
            for at in range(0, max(1, len(rest)), limit):
                yield rest[at : at + limit]
            held, have = [], 0
        held.append(some)
        have += len(some)
        while have >= (most := max(batch, min(size, limit) // batch * batch)):
            joined = np.concatenate(held)
            most = min(most, limit)
            yield joined[:most]
            held, have = [joined[most:]], have - most
            size = min(4 * size, WINDOW)
    rest = np.concatenate(held) if held else np.zeros(0, np.int64)
    for at in range(0, len(rest), limit):
        yield rest[at : at + limit]


class DirectReader:
    """By the memory-mapped reader.

    With one worker in the caller's own thread: a row takes a few microseconds, less than to hand it
    from thread to thread. More workers are threads that read ahead, for a disk that makes one wait.
    """

    def __init__(self, split: Split, derive: Derive, workers: int) -> None:
        self._split, self._derive, self._workers = split, derive, workers

    def read(self, rows: Iterable[Int64], batch: int) -> Generator[Batch, None, None]:
        """See Reader."""
        with IndexableSource(self._split.files, self._split.columns) as source:
            for file, name in zip(self._split.files, source.names):
                if name != Path(file).name:  # two of one size, swapped: another order of rows
                    raise UserError(
                        f"{file} was renamed: inside it is called {name}; run mindprep verify "
                        "--repair on its folder"
                    )

            def work(some: Int64) -> Batch:
                return self._derive(source.read(some), some)

            some_rows = blocks(rows, batch, block_rows(self._split, batch))
            alone = self._workers == 1
            made = map(work, some_rows) if alone else map_ahead(work, some_rows, self._workers)
            for block in made:
                yield from cut(block, batch)


def block_rows(split: Split, batch: int) -> int:
    """Rows that are read together, whole batches: some at a time cost less each than few."""
    stored = 4 * batch * sum(split.manifest.columns[name] for name in split.columns)
    return max(1, min(BLOCK_BYTES // stored, BLOCK_ROWS // batch)) * batch


def cut(rows: Batch, batch: int) -> Iterator[Batch]:
    """Batches of a block of rows, parts of its arrays."""
    for at in range(0, len(rows["input_ids"]), batch):
        yield {name: values[at : at + batch] for name, values in rows.items()}


def blocks(rows: Iterable[Int64], first: int, most: int) -> Iterator[Int64]:
    """The same stream in arrays of `first` rows, doubling up to `most`, so that it starts soon.

    The last may be shorter; so is what is left, and be it nothing, at NONE_NEAR.
    """
    size = first
    held = np.zeros(0, np.int64)
    for some in rows:
        if not len(some):
            yield held
            held = some
            continue
        held = np.concatenate([held, some])
        at = 0
        while len(held) - at >= size:
            yield held[at : at + size]
            at += size
            size = min(2 * size, most)
        held = held[at:]
    if len(held):
        yield held


def open_readers(
    splits: Sequence[Split],
    name: ReaderName,
    workers: int,
    prefetch: int,
    vocab_size: int | None,
) -> list[Reader]:
    """A reader for each split, which opens its shards when it is asked for rows.

    Raises UserError when the machine does not allow it.
    """
    if name == "mindspore":
        check_mindspore(splits, workers)
        return [MindSporeReader(s, s.derive(vocab_size), workers, prefetch) for s in splits]
    check_workers(workers)
    return [DirectReader(s, s.derive(vocab_size), workers) for s in splits]


def check_mindspore(splits: Sequence[Split], workers: int) -> None:
    """Raises UserError when MindSpore is not there, or could not open these shards."""
    check_workers(workers)
    if find_spec("mindspore") is None:
        raise UserError("MindSpore is not installed here; install it, or set reader: direct")
    check_open_files(splits, workers)
