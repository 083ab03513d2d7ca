"""Parts of spills: batches of one shard that stand together, each part read at once.

A local file is mapped. Of a remote one exactly the range is asked for, many ranges at a time: a
store answers slowly.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dataprep.corpus.arrow import unreadable
from dataprep.storage import AT_ONCE, Place, Remote, read_range

AHEAD = 32 << 20  # bytes asked for before they are wanted


class Range(NamedTuple):
    """Batches of one shard that stand together in a spill; an entry of its index."""

    shard: int
    position: int
    size: int
    """Bytes."""
    documents: int
    values: int


@dataclass(frozen=True)
class Slice:
    """What one spill holds of one shard."""

    spill: Place
    ranges: list[Range]


def read_ranges(slices: Iterable[Slice]) -> Iterator[tuple[Place, pa.Buffer | bytes]]:
    """The bytes of each range, in order, and where they are from."""
    pairs = ((part.spill, one) for part in slices for one in part.ranges)
    for remote, group in groupby(pairs, lambda pair: isinstance(pair[0], Remote)):
        read: Any = _asked if remote else _mapped
        yield from read(group)


def _mapped(pairs: Iterable[tuple[Path, Range]]) -> Iterator[tuple[Place, pa.Buffer]]:
    """One range is mapped at a time: there may be thousands of files, and pages count as memory."""
    for spill, one in pairs:
        try:
            with pa.memory_map(str(spill)) as source:
                source.seek(one.position)
                data = source.read_buffer(one.size)
                if data.size != one.size:
                    raise OSError("it was cut short")
                yield spill, data
        except (OSError, pa.ArrowException) as e:
            raise unreadable(spill, e) from e


def _asked(pairs: Iterable[tuple[Remote, Range]]) -> Iterator[tuple[Place, bytes]]:
    """Many requests at a time, up to AHEAD bytes ahead."""
    ahead: deque[tuple[Remote, int, Future[bytes]]] = deque()
    held = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for spill, one in pairs:
            while ahead and (len(ahead) == AT_ONCE or held + one.size > AHEAD):
                first, size, answer = ahead.popleft()
                held -= size
                yield first, answer.result()
            ahead.append((spill, one.size, pool.submit(_ask, spill, one)))
            held += one.size
        while ahead:
            first, _, answer = ahead.popleft()
            yield first, answer.result()


def _ask(spill: Remote, one: Range) -> bytes:
    try:
        return read_range(spill, one.position, one.position + one.size)
    except OSError as e:
        raise unreadable(spill, e) from e


def fetch(slices: Sequence[Slice], path: Path) -> list[Slice]:
    """Copies slices into one local file, to be read more than once."""
    found = read_ranges(slices)
    out = []
    with path.open("wb") as sink:
        for part in slices:
            ranges = []
            for one in part.ranges:
                ranges.append(one._replace(position=sink.tell()))
                sink.write(next(found)[1])
            out.append(Slice(path, ranges))
    return out
