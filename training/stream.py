"""Batches in the order of a mix, put together from the readers of its folders.

    spans of positions ─ places (once) ─┬─ rows of folder 0 ─ its reader ─┐
                                        └─ rows of folder 1 ─ its reader ─┴─ rows in order ─ batches

A reader wants many rows at a time, and asks ahead of the batch that is made. How far is bounded:
a rank may need no row of a folder for whole epochs.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from training.derive import COLUMNS, Batch, Int64
from training.mix import Int32, Mix
from training.readers import NONE_NEAR, Reader

Spans = Callable[[], Iterator[tuple[int, Int64]]]
"""Makes the stream of what is to be read: (epoch, ascending positions of it)."""
AHEAD = 64  # spans that readers may ask for before the one that is put together


def stream(
    mix: Mix, readers: Sequence[Reader], spans: Spans, size: int
) -> Generator[Batch, None, None]:
    """Batches of `size` rows in the order of the spans; one is smaller where a span ends sooner."""
    if len(readers) == 1 and size <= mix.folder_rows[0]:
        rows = (mix.folder_order(0, epoch, positions) for epoch, positions in spans())
        yield from readers[0].read(rows, size)
        return
    order = _Order(mix, spans())
    parts = [_Rows(reader.read(order.rows(i), size)) for i, reader in enumerate(readers)]
    try:
        for folders in order.folders():
            for at in range(0, len(folders), size):
                yield _joined(parts, folders[at : at + size])
    finally:
        for part in parts:
            part.batches.close()


class _Order:
    """What comes next, for the batches and for the readers of all folders."""

    def __init__(self, mix: Mix, spans: Iterator[tuple[int, Int64]]) -> None:
        self._mix, self._spans = mix, spans
        self._coming: deque[Int32] = deque()  # folder of each position, a span each
        self._rows: list[deque[Int64]] = [deque() for _ in mix.counts]

    def folders(self) -> Iterator[Int32]:
        """Folder of each position, span by span."""
        while self._coming or self._look():
            yield self._coming.popleft()

    def rows(self, folder: int) -> Iterator[Int64]:
        """Row numbers of one folder in order; NONE_NEAR when AHEAD spans have no more of them."""
        mine = self._rows[folder]
        while True:
            while not mine:
                if len(self._coming) >= AHEAD:
                    yield NONE_NEAR
                elif not self._look():
                    return
            yield mine.popleft()

    def _look(self) -> bool:
        """Computes another span; False at the end."""
        epoch, positions = next(self._spans, (0, None))
        if positions is None:
            return False
        folders, nth = self._mix.places(positions)
        for folder, rows in enumerate(self._rows):
            if len(some := nth[folders == folder]):
                rows.append(self._mix.folder_order(folder, epoch, some))
        self._coming.append(folders)
        return True


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
