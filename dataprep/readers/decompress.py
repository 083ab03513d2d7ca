"""A compressed file as one readable stream: all its members or frames, under limits.

A damaged file ends where the damage is: what could be decoded before it is kept, and the damage is
reported.
"""

import bz2
import io
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol, cast

import zstandard

from dataprep.errors import UserError
from dataprep.readers.inputs import InputFile
from dataprep.readers.splits import MIB

MAX_WINDOW = 1 << 28  # zstd --long=28; a larger window would let a file claim gigabytes of memory
MAX_EXPANSION = 2000  # gzip cannot exceed 1032:1; more is a decompression bomb
MAX_STEP = 16 * MIB  # bytes out of one step, about


class _Decoder(Protocol):
    """What bz2 decompressors offer, and the adapters below for zlib and zstandard."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Corrupt(Exception):
    """A damaged stream: what is wrong, and the bytes decoded before the damage."""

    def __init__(self, why: str, salvaged: bytes) -> None:
        super().__init__(why)
        self.salvaged = salvaged


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


def _salvage(z: "zlib._Decompress", data: bytes) -> bytes:
    out = bytearray()
    try:
        for i in range(len(data)):
            out += z.decompress(data[i : i + 1])
    except zlib.error:
        pass  # the damage itself, reported by the caller
    return bytes(out)


class _Zstd:
    """One zstd frame, which may be a skippable one."""

    # The library knows no limit for the output of a call, and 4 bytes may stand for 128 KiB (a
    # run-length block): 1 KiB at a time holds it to 32 MiB.
    _PIECE = 1 << 10

    def __init__(self) -> None:
        self._z = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
        self._rest = b""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        data, out, at = self._rest + data, b"", 0
        while at < len(data) and not out and not self._z.eof:
            out = self._z.decompress(data[at : at + self._PIECE])
            at += self._PIECE
        self._rest = data[at:]
        return out

    eof = property(lambda self: self._z.eof)
    unused_data = property(lambda self: self._z.unused_data + self._rest)
    needs_input = property(lambda self: not self._rest)


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": cast(Callable[[], _Decoder], _Gzip),
    "zstd": cast(Callable[[], _Decoder], _Zstd),
    "bzip2": cast(Callable[[], _Decoder], bz2.BZ2Decompressor),
}
_CHUNK = 64 << 10  # compressed bytes a step


class Decompressed(io.RawIOBase):
    """The stream.

    `on_damage` is called with a description when the file ends early or is corrupt.
    Raises UserError when the file expands, or needs memory, beyond the limits.
    """

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
        hungry = self._decoder is None or self._decoder.needs_input
        data = self._pending or (self._raw.read(_CHUNK) if hungry else b"")
        self._pending = b""
        if not data and hungry:
            if self._decoder is not None:
                self._damage("the file ends in the middle of a compressed stream")
            self._done = True
            return b""
        if self._decoder is None:
            data = data.lstrip(b"\0")  # legal padding after a member
            if not data:
                return b""
            self._decoder = self._make()
        out = self._decode(self._decoder, data)
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

    def _decode(self, decoder: _Decoder, data: bytes) -> bytes:
        """The next bytes; at damage, those before it."""
        try:
            return decoder.decompress(data, MAX_STEP)
        except (_Corrupt, OSError, zstandard.ZstdError) as e:  # bz2 raises OSError
            if "too much memory" in str(e):
                raise UserError(
                    f"{self._file.path} needs a zstd window of more than {MAX_WINDOW // MIB} MiB; "
                    "recompress it with --long=28 or less"
                ) from e
            self._damage(str(e))
            return e.salvaged if isinstance(e, _Corrupt) else b""

    def _damage(self, why: str) -> None:
        self._on_damage(f"{why} (at compressed byte {self._raw.tell():,} or shortly before)")
        self._done = True
