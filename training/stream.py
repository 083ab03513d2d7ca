"""Batches in the order of a mix, put together from the readers of its folders."""

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from training.derive import COLUMNS, Batch, Int64
from training.mix import Int32, Mix
from training.readers import Reader

Spans = Callable[[], Iterator[tuple[int, Int64]]]
"""Makes the stream of what is to be read: (epoch, ascending positions of it)."""


def stream(
    mix: Mix, readers: Sequence[Reader], spans: Spans, size: int
) -> Generator[Batch, None, None]:
    """Batches of `size` rows in the order of the spans; one is smaller where a span ends sooner.

    Every folder has a stream of row numbers of its own, so that its reader may run ahead as far as
    it likes.
    """
    if len(readers) == 1:
        yield from readers[0].read(_order(mix, 0, spans()), size)
        return
    parts = [
        _Rows(reader.read(_order(mix, folder, spans()), size))
        for folder, reader in enumerate(readers)
    ]
    try:
        for _, positions in spans():
            folders, _ = mix.places(positions)
            for at in range(0, len(positions), size):
                yield _joined(parts, folders[at : at + size])
    finally:
        for part in parts:
            part.batches.close()


def _order(mix: Mix, folder: int, spans: Iterator[tuple[int, Int64]]) -> Iterator[Int64]:
    """Row numbers of one folder, in the order of the mix."""
    for epoch, positions in spans:
        folders, nth = mix.places(positions)
        yield mix.folder_order(folder, epoch, nth[folders == folder])


def _joined(parts: Sequence["_Rows"], folders: Int32) -> Batch:
    """A batch whose row i is the next one of folders[i]."""
    columns: dict[str, list[Int32]] = {name: [] for name in COLUMNS}
    for folder, part in enumerate(parts):
        for some in part.take(int((folders == folder).sum())):
            for name in COLUMNS:
                columns[name].append(some[name])
    # Rows stand there folder by folder; row i belongs where the i-th smallest folder number is.
    place = np.argsort(folders, kind="stable")
    batch = {}
    for name, blocks in columns.items():
        batch[name] = np.empty((len(folders), blocks[0].shape[1]), np.int32)
        batch[name][place] = np.concatenate(blocks)
    return batch


class _Rows:
    """Batches of a reader, as rows to be taken in any number."""

    def __init__(self, batches: Generator[Batch, None, None]) -> None:
        self.batches = batches
        self._held: Batch = {}
        self._left = 0

    def take(self, n: int) -> Iterator[Batch]:
        """The next n rows, in parts."""
        while n:
            if not self._left:
                self._fetch()
            at = len(self._held["input_ids"]) - self._left
            some = min(n, self._left)
            self._left -= some
            n -= some
            yield {name: rows[at : at + some] for name, rows in self._held.items()}

    def _fetch(self) -> None:
        self._held = next(self.batches)
        self._left = len(self._held["input_ids"])
