"""Bytes of a split as blocks of whole records, whatever the compression.

    file   ....\n.....\n..|....\n.......\n...|..      | = split border
    split                  [----\n.......\n.....\n]     starts after the first LF, ends after
                                                        the last record begun before the border

Only LF ends a record (CRLF is handled by the parsers): U+2028, U+0085 and CR may stand inside one.
"""

import bz2
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

import zstandard

from dataprep.errors import UserError
from dataprep.readers.inputs import InputFile
from dataprep.readers.splits import MIB, Split

BLOCK_BYTES = 4 * MIB
MAX_WINDOW = 1 << 28  # zstd --long=28; a larger window would let a file claim gigabytes of memory
MAX_EXPANSION = 2000  # gzip cannot exceed 1032:1; more is a decompression bomb
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

    on_damage is called with a description when a compressed stream ends early or is corrupt; what
    could be decompressed is still yielded.

    Raises UserError when the file cannot be read or expands beyond the limits.
    """
    try:
        with open(split.file.path, "rb") as raw:
            if split.file.compression:
                source = _Decompressed(raw, split.file, on_damage)
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
        pos = start - 1 + _skip_line(f)
    while stop is None or pos < stop:
        data = f.read(BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - pos))
        if not data:
            return
        read, overlong = len(data), 0
        if not data.endswith(b"\n"):
            tail = f.readline(max_record)
            read += len(tail)
            data += tail
            if len(tail) == max_record and not tail.endswith(b"\n"):
                skipped = _skip_line(f)
                read += skipped
                cut = data.rfind(b"\n") + 1
                overlong = len(data) - cut + skipped
                data = data[:cut]
        if pos == 0:
            data = data.removeprefix(_BOM)
        pos += read
        yield Block(data, overlong)


def _skip_line(f: BinaryIO) -> int:
    """Reads past the next LF in bounded steps; returns the number of bytes passed."""
    n = 0
    while piece := f.readline(BLOCK_BYTES):
        n += len(piece)
        if piece.endswith(b"\n"):
            break
    return n


class _Decoder(Protocol):
    """What bz2 decompressors offer, and the adapters below for zlib and zstandard."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """One gzip member, with CRC and length checked by zlib."""

    def __init__(self) -> None:
        self._z = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        before = self._z.copy()
        data = self._z.unconsumed_tail + data
        try:
            return self._z.decompress(data, max(max_length, 0))
        except zlib.error as e:
            # zlib gives an error *instead of* the bytes before it: take them one by one.
            raise _Corrupt(str(e), _salvage(before, data)) from e

    eof = property(lambda self: self._z.eof)
    unused_data = property(lambda self: self._z.unused_data)
    needs_input = property(lambda self: not self._z.unconsumed_tail)


class _Corrupt(Exception):
    """A damaged stream: what is wrong, and the bytes decoded before the damage."""

    def __init__(self, why: str, salvaged: bytes) -> None:
        super().__init__(why)
        self.salvaged = salvaged


def _salvage(z: "zlib._Decompress", data: bytes) -> bytes:
    out = bytearray()
    try:
        for i in range(len(data)):
            out += z.decompress(data[i : i + 1])
    except zlib.error:
        pass  # the damage itself, reported by the caller
    return bytes(out)


class _Zstd:
    """One zstd frame."""

    def __init__(self) -> None:
        self._z = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._z.decompress(data)

    eof = property(lambda self: self._z.eof)
    unused_data = property(lambda self: self._z.unused_data)
    needs_input = True


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": cast(Callable[[], _Decoder], _Gzip),
    "zstd": cast(Callable[[], _Decoder], _Zstd),
    "bzip2": cast(Callable[[], _Decoder], bz2.BZ2Decompressor),
}
_CHUNK = 64 << 10  # compressed bytes a step: bounds the output of one step


class _Decompressed(io.RawIOBase):
    """A readable stream over all members or frames of a compressed file, under limits."""

    def __init__(self, raw: BinaryIO, file: InputFile, on_damage: Callable[[str], None]) -> None:
        self._raw, self._file, self._on_damage = raw, file, on_damage
        self._make = _DECODERS[file.compression]
        self._decoder: _Decoder | None = None
        self._pending = b""  # compressed bytes not consumed
        self._out = memoryview(b"")
        self._expanded = 0
        self._done = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._out and not self._done:
            self._out = memoryview(self._step())
        n = min(len(buffer), len(self._out))
        buffer[:n] = self._out[:n]
        self._out = self._out[n:]
        return n

    def _step(self) -> bytes:
        """Decompresses the next piece; sets _done at the end of the file or at damage."""
        hungry = self._decoder is None or getattr(self._decoder, "needs_input", True)
        data = self._pending or (self._raw.read(_CHUNK) if hungry else b"")
        self._pending = b""
        if not data and hungry:
            if self._decoder is not None:
                self._damage("the file ends in the middle of a compressed stream")
            self._done = True
            return b""
        if self._decoder is None:
            if not data.strip(b"\0"):  # padding with zeros is legal after a member
                return b""
            self._decoder = self._make()
        try:
            out = self._decoder.decompress(data, 16 * MIB)
        except _Corrupt as e:
            self._damage(str(e))
            return e.salvaged
        except (OSError, EOFError, ValueError, zstandard.ZstdError) as e:
            self._damage(str(e))
            return b""
        if self._decoder.eof:
            self._pending = self._decoder.unused_data
            self._decoder = None
        self._expanded += len(out)
        if self._expanded > 64 * MIB + MAX_EXPANSION * self._file.size:
            raise UserError(
                f"{self._file.path} expands to more than {MAX_EXPANSION} times its size: "
                "refused as a decompression bomb; decompress it yourself if it is sound"
            )
        return out

    def _damage(self, why: str) -> None:
        self._on_damage(f"{why} (compressed byte {self._raw.tell()})")
        self._done = True
