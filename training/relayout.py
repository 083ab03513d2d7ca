"""Tensors put together from pieces of any layout, whatever layout asks for them.

A piece is a flat range of a slice of a global tensor (pieces.py). In the global tensor, seen as one
line of elements in C order, it is a few runs: [4, 6] sliced into columns 2..4, elements 1..6 of it

    . . a b c .        slice, local shape [4, 3]: a b c d e f g h i j k l
    . . d e f .        elements 1..6:               b c d e f g
    . . g h i .        global runs:               3..4  8..10  14
    . . j k l .

Two pieces share what their runs share, so nothing else has to be known of either layout, and only
the bytes that are asked for are read.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataprep.errors import UserError
from training.pieces import Float32, Kind, Slice
from training.tensorfile import TensorFile

Int64 = npt.NDArray[np.int64]


def runs(part: Slice, first: int, last: int) -> tuple[Int64, Int64]:
    """Global starts and stops, ascending, of elements first..last-1 of a slice (first < last)."""
    axis, start, stop = part.axis, part.start, part.stop
    if axis is None:
        return np.array([first], np.int64), np.array([last], np.int64)
    inner = prod(part.shape[axis + 1 :])
    width = (stop - start) * inner  # elements of a row of the slice
    rows = np.arange(first // width, (last - 1) // width + 1, dtype=np.int64)
    begins = np.maximum(rows * width, first)
    ends = np.minimum((rows + 1) * width, last)
    shift = rows * (part.shape[axis] * inner - width) + start * inner  # from local to global
    return begins + shift, ends + shift


def overlaps(a: tuple[Int64, Int64], b: tuple[Int64, Int64]) -> Int64:
    """What two lists of runs share: int64 [n, 3] of (place in a, place in b, length).

    A place counts elements of the list's own runs from its first.
    """
    if a[1][-1] <= b[0][0] or b[1][-1] <= a[0][0]:
        return np.empty((0, 3), np.int64)
    cuts = np.unique(np.concatenate([*a, *b]))
    begins, lengths = cuts[:-1], np.diff(cuts)
    places = []
    inside = np.ones(len(begins), bool)
    for starts, stops in (a, b):
        at = np.searchsorted(starts, begins, "right") - 1
        inside &= (at >= 0) & (begins < stops[at])
        before = np.cumsum(stops - starts) - (stops - starts)
        places.append(before[at] + begins - starts[at])
    return np.stack([*places, lengths], 1)[inside]


@dataclass(frozen=True)
class Stored:
    """A piece that lies in a file."""

    kind: Kind
    name: str
    slice: Slice
    first: int
    last: int
    file: TensorFile
    key: str
    """Its name in the file, where it is flat."""


class Tensors:
    """All tensors of a checkpoint or a folder of weights."""

    def __init__(self, source: Path, pieces: Iterable[Stored]) -> None:
        """Raises UserError unless every element of every tensor is there exactly once."""
        self.source = source
        self._pieces: dict[tuple[Kind, str], list[Stored]] = defaultdict(list)
        for piece in pieces:
            self._pieces[piece.kind, piece.name].append(piece)
        self.shapes: dict[tuple[Kind, str], tuple[int, ...]] = {}
        for (kind, name), parts in sorted(self._pieces.items()):
            placed = [(part.slice, part.first, part.last) for part in parts]
            self.shapes[kind, name] = check_whole(f"{source}: {kind}.{name}", placed)
        self._last: tuple[tuple[Kind, str], list[tuple[Int64, Int64]]] | None = None

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights by name."""
        return {name: shape for (kind, name), shape in self.shapes.items() if kind == "w"}

    def read(self, kind: Kind, name: str, part: Slice, first: int, last: int) -> Float32:
        """A Read, see pieces.py: elements first..last-1 of a slice, copied.

        Raises UserError when there is no such tensor, or of another shape.
        """
        shape = self.shapes.get((kind, name))
        if shape is None:
            raise UserError(
                f"{self.source} holds no tensor {kind}.{name}, which the model of this run has; "
                "give the model section that it was made with"
            )
        if shape != part.shape:
            raise UserError(
                f"{name} is {list(shape)} in {self.source} but {list(part.shape)} in the model of "
                "this run; make the model section agree with it"
            )
        values = np.empty(last - first, np.float32)
        if first == last:
            return values
        wanted = runs(part, first, last)
        for piece, present in zip(self._pieces[kind, name], self._runs(kind, name), strict=True):
            shared = overlaps(present, wanted)
            if len(shared) == 0:
                continue
            begin, end = int(shared[0, 0]), int(shared[-1, 0] + shared[-1, 2])
            stored = piece.file.read(piece.key, begin, end)
            for there, here, n in shared.tolist():
                values[here : here + n] = stored[there - begin : there - begin + n]
        return values

    def whole(self, name: str) -> Float32:
        """A weight, in its shape."""
        shape = self.shapes["w", name]
        return self.read("w", name, Slice(shape), 0, prod(shape)).reshape(shape)

    def _runs(self, kind: Kind, name: str) -> list[tuple[Int64, Int64]]:
        """Of each piece of a tensor; those of the last one asked for are kept."""
        if self._last is None or self._last[0] != (kind, name):
            parts = self._pieces[kind, name]
            self._last = (kind, name), [runs(p.slice, p.first, p.last) for p in parts]
        return self._last[1]


def check_whole(told: str, parts: list[tuple[Slice, int, int]]) -> tuple[int, ...]:
    """The shape that (slice, first, last) of one tensor make up.

    Raises UserError, beginning with `told`, unless they agree in it and cover it exactly once.
    """
    shape = parts[0][0].shape
    if any(part.shape != shape for part, _, _ in parts):
        raise UserError(f"{told} is damaged: its pieces are of tensors of different shapes")
    if sum(last - first for _, first, last in parts) == prod(shape):  # else do not even look
        found = [runs(*part) for part in parts]
        starts = np.sort(np.concatenate([starts for starts, _ in found]))
        stops = np.sort(np.concatenate([stops for _, stops in found]))
        if starts[0] == 0 and (starts[1:] == stops[:-1]).all():
            return shape
    raise UserError(f"{told} is damaged: its pieces do not hold each element exactly once")
