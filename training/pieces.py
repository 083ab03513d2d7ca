"""How a process's numbers are parts of the whole model's: what checkpoints are made of.

global tensor [8, 4]                                 "layers.0.self_attn.q_proj.weight"
  └ slice: rows 4..7 of axis 0, [4, 4]               tensor parallelism, 2 parts
      └ flat range 8..15 of its 16 elements          optimizer sharding, 2 replicas
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Kind = Literal["w", "m", "v"]
"""Master weight, first moment, second moment."""


@dataclass(frozen=True)
class Slice:
    """The part of a global tensor that a process holds."""

    shape: tuple[int, ...]
    """Of the global tensor."""
    axis: int | None = None
    """Along which it is divided; None: it is whole on every tensor-parallel process."""
    start: int = 0
    stop: int = 0
    """Its part along the axis."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of the part."""
        if self.axis is None:
            return self.shape
        return (*self.shape[: self.axis], self.stop - self.start, *self.shape[self.axis + 1 :])

    @property
    def size(self) -> int:
        """Elements of the part."""
        return prod(self.local_shape)


@dataclass(frozen=True)
class Piece:
    """Elements first..last-1, in C order, of a slice, and how to get them."""

    kind: Kind
    name: str
    """Global name of the parameter."""
    slice: Slice
    first: int
    last: int
    values: Callable[[], Float32]
    """A copy of them, float32 [last - first]."""


Read = Callable[[Kind, str, Slice, int, int], Float32]
"""(kind, name, slice, first, last) -> float32 [last - first], from wherever they are kept."""
