"""Bytes of a split as blocks of whole records, whatever the compression.

    file   ....\n.....\n..|....\n.......\n...|..      | = split border
    split                  [----\n.......\n.....\n]     starts after the first LF, ends after
                                                        the last record begun before the border

Only LF ends a record (CRLF is handled by the parsers): U+2028, U+0085 and CR may stand inside one.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from dataprep.errors import UserError
from dataprep.readers.decompress import Decompressed
from dataprep.readers.splits import MIB, Split
from dataprep.storage import open_reader, place

BLOCK_BYTES = 4 * MIB
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Whole records, each ended by LF (the last of a file may lack it)."""

    data: bytes
    overlong: int = 0
    """Bytes of one more record after `data` that exceeds the limit and was skipped; 0: none."""


def record_blocks(
    split: Split, max_record: int, on_damage: Callable[[str], None]
) -> Iterator[Block]:
    """Blocks of a byte-range split, or of a whole compressed file.

    No record in them is longer than `max_record` bytes (its LF not counted). on_damage is called
    with a description when a compressed stream ends early or is corrupt; what could be decompressed
    is still yielded.

    Raises UserError when the file cannot be read or expands beyond the limits.
    """
    try:
        with open_reader(place(split.file.path)) as raw:
            if split.file.compression:
                source = Decompressed(raw, split.file, on_damage)
                stream = cast(BinaryIO, io.BufferedReader(source, BLOCK_BYTES))
                yield from _blocks(stream, 0, None, max_record)
            else:
                yield from _blocks(raw, split.start, split.stop, max_record)
    except OSError as e:
        raise UserError(f"cannot read {split.file.path}: {e.strerror or e}") from e


def _blocks(f: BinaryIO, start: int, stop: int | None, max_record: int) -> Iterator[Block]:
    pos = start
    if start:
        # The record before ours ends at the first LF at or after start - 1.
        f.seek(start - 1)
        pos = start + _skip_line(f)
    while stop is None or pos < stop:
        data = f.read(BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - pos))
        if not data:
            return
        tail = b"" if data.endswith(b"\n") else f.readline(max_record)
        data += tail
        first, pos = pos == 0, pos + len(data)
        if first:
            data = data.removeprefix(_BOM)
        if len(tail) == max_record and not tail.endswith(b"\n"):
            skipped = _skip_line(f)
            pos += skipped + 1
            cut = data.rfind(b"\n") + 1
            yield from _within(data[:cut], max_record)
            yield Block(b"", len(data) - cut + skipped)
        else:
            yield from _within(data, max_record)


def _within(data: bytes, max_record: int) -> Iterator[Block]:
    """Whole records as blocks, without those over the limit."""
    if len(data) <= max_record:  # none can be
        yield Block(data)
        return
    begin = at = 0
    while at < len(data):
        lf = data.find(b"\n", at)
        end = lf if lf >= 0 else len(data)
        if end - at > max_record:
            yield Block(data[begin:at], end - at)
            begin = end + 1
        at = end + 1
    yield Block(data[begin:])


def _skip_line(f: BinaryIO) -> int:
    """Reads past the next LF in bounded steps; returns the number of bytes before it."""
    n = 0
    while piece := f.readline(BLOCK_BYTES):
        n += len(piece)
        if piece.endswith(b"\n"):
            return n - 1
    return n
