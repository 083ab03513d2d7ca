"""What a tokenized data set is to an import: documents of ids, in order, read from any of them on.

A source is looked at first (how long is each document, where may a piece of work begin), then read
in pieces, by several processes.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dataprep.corpus.plan import Ints

Ids = npt.NDArray[np.integer]
READ_BYTES = 8 << 20  # of ids, held at a time while they are read


class Found(NamedTuple):
    """What a look at a source tells."""

    lengths: Ints
    """int64[d]: ids of each document; 0 for an empty or missing one."""
    begins: Ints
    """int64[b]: documents at which a reader can begin without reading what is before, 0 first."""
    notes: list[str]
    """What a person should know."""


class Lists(NamedTuple):
    """Consecutive documents."""

    first: int
    """Number of the first of them in its source."""
    ids: Ids
    """Of all of them, flat; in the source's own integer type."""
    offsets: Ints
    """int64[d + 1]: document i is ids[offsets[i]:offsets[i + 1]]."""
    missing: npt.NDArray[np.bool_] | None
    """bool[d]: null where a list should be; None: none is."""


class Source(Protocol):
    """A tokenized data set; picklable, small."""

    def look(self) -> Found:
        """Raises UserError when the source is damaged or holds no ids."""
        ...

    def read(self, first: int, stop: int) -> Iterator[Lists]:
        """Documents first..stop-1, in order.

        Raises UserError when the source is damaged or holds something else than ids.
        """
        ...


def wrong_type(where: str, kind: str) -> str:
    """The one wording for values that are no ids."""
    return f"{where} holds values of type {kind}, not token ids; tokenize the text first"
