"""Megatron-LM's IndexedDataset, version 1: PREFIX.bin holds token ids, PREFIX.idx where they stand.

    PREFIX.idx, all little-endian            PREFIX.bin: ids of all sequences
    9 bytes   "MMIDIDX\\0\\0"
    uint64    version, 1
    uint8     dtype of the ids, a code of DTYPES
    uint64    s, number of sequences
    uint64    e, entries of the documents
    int32[s]  ids of each sequence
    int64[s]  first byte of each sequence in the .bin
    int64[e]  first sequence of each document, 0 first and s last
    int8[s]   mode of each sequence; in multimodal files only

A document of several sequences (sentences, for BERT) is one document here.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dataprep.convert.source import READ_BYTES, Found, Ids, Lists, wrong_type
from dataprep.corpus.exchange import copy_lists, cuts
from dataprep.corpus.plan import Ints
from dataprep.errors import UserError
from dataprep.files import sync, unfinished, write_error

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
DTYPES: dict[int, type[np.number]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
SMALL_VOCABULARY = 65_500  # below it ids are written in two bytes (Megatron's optimal_dtype)
_HEAD = struct.Struct("<9sQBQQ")
_MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True)
class Index:
    """What a .idx says. Arrays are views of the mapped file, and stand at odd addresses there."""

    dtype: np.dtype
    """Of the ids; an integer type."""
    lengths: npt.NDArray[np.int32]
    """int32[s]: ids of each sequence."""
    pointers: Ints
    """int64[s]: first byte of each sequence in the .bin."""
    documents: Ints
    """int64[e]: document i is made of sequences documents[i]:documents[i + 1]."""
    modes: npt.NDArray[np.int8]
    """int8[s], or [0]."""
    size: int
    """Bytes of the .bin."""


def bin_path(prefix: Path) -> Path:
    """Where the ids are."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """Where the index is."""
    return prefix.with_name(prefix.name + ".idx")


def open_index(prefix: Path) -> Index:
    """Maps an index. Its header and size are checked, not yet what the arrays say.

    Raises UserError when there is none, or another version or form of it.
    """
    path = idx_path(prefix)
    try:
        size = bin_path(prefix).stat().st_size
        with path.open("rb") as f:
            head = f.read(_HEAD.size)
            dtype, sequences, entries = _read_head(head, path)
            need = _HEAD.size + 12 * sequences + 8 * entries
            has = path.stat().st_size
            if has not in (need, need + sequences):
                raise _damaged(
                    path,
                    f"{sequences:,} sequences and {entries:,} document entries take {need:,} "
                    f"bytes, it has {has:,}",
                )
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as e:
        raise UserError(
            f"cannot read {e.filename}: {e.strerror}; an IndexedDataset is a .bin and a .idx"
        ) from e
    at = np.cumsum([_HEAD.size, 4 * sequences, 8 * sequences, 8 * entries]).tolist()
    return Index(
        dtype,
        lengths=np.frombuffer(data, "<i4", sequences, at[0]),
        pointers=np.frombuffer(data, "<i8", sequences, at[1]),
        documents=np.frombuffer(data, "<i8", entries, at[2]),
        modes=np.frombuffer(data, "<i1", has - need, at[3]),
        size=size,
    )


def _read_head(head: bytes, path: Path) -> tuple[np.dtype, int, int]:
    """(dtype of the ids, sequences, document entries)"""
    if not head.startswith(MAGIC):
        raise UserError(
            f"{path} is no Megatron index: it begins with {head[:9]!r}, not {MAGIC!r}; an index of "
            "an older form (lazy, cached) must be made again with Megatron's preprocess_data.py"
        )
    if len(head) < _HEAD.size:
        raise _damaged(path, f"it ends after {len(head)} bytes, within its header")
    _, version, code, sequences, entries = _HEAD.unpack(head)
    if version != VERSION:
        raise UserError(f"{path} has version {version}; only version {VERSION} can be read")
    if code not in DTYPES:
        raise _damaged(path, f"it has dtype code {code}; known are 1 to {max(DTYPES)}")
    dtype = np.dtype(DTYPES[code]).newbyteorder("<")
    if dtype.kind == "f":
        raise UserError(wrong_type(f"{path}", str(dtype)))
    return dtype, sequences, entries


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged: {what}; copy it again from a good copy, or make it again")


def _check_documents(path: Path, documents: Ints, sequences: int) -> None:
    if not len(documents) and not sequences:
        return
    if not len(documents) or documents[0] != 0 or documents[-1] != sequences:
        ends = f"go from {documents[0]} to {documents[-1]}" if len(documents) else "are none"
        raise _damaged(path, f"its documents must go from sequence 0 to {sequences:,}, they {ends}")
    bad = np.flatnonzero(np.diff(documents) < 0)
    if len(bad):
        raise _damaged(path, f"document {bad[0]} ends before it begins")


def _check_places(path: Path, first: int, lengths: Ints, pointers: Ints, index: Index) -> None:
    """Raises UserError for a sequence that is not in the .bin; `first`: number of the first."""
    width = index.dtype.itemsize
    for what, bad in (
        ("has a length below 0", lengths < 0),
        ("begins before the .bin does", pointers < 0),
        (f"begins within an id of {width} bytes", pointers % width != 0),
        # Not as a sum, which may overflow.
        (
            f"ends after the .bin, which has {index.size:,} bytes",
            pointers > index.size - lengths * width,
        ),
    ):
        if bad.any():
            raise _damaged(path, f"sequence {first + int(np.argmax(bad)):,} {what}")


@dataclass(frozen=True)
class Megatron:
    """Documents of one IndexedDataset."""

    prefix: Path

    def look(self) -> Found:
        """Checks all of the index. Memory: about 50 bytes a sequence."""
        index, path = open_index(self.prefix), idx_path(self.prefix)
        if index.modes.any():
            raise UserError(
                f"{path} is multimodal: some sequences have a mode, so they hold other things than "
                "token ids; take them out first"
            )
        documents = np.array(index.documents)
        sequences = index.lengths.astype(np.int64)
        _check_documents(path, documents, len(sequences))
        _check_places(path, 0, sequences, np.array(index.pointers), index)
        ends = np.concatenate([[0], np.cumsum(sequences)])
        notes = []
        several = int((np.diff(documents) > 1).sum())
        if several:
            notes.append(
                f"{path}: {several:,} documents of several sequences are read as one document each"
            )
        unused = index.size - int(ends[-1]) * index.dtype.itemsize
        if unused > 0:
            notes.append(
                f"{bin_path(self.prefix)}: {unused:,} bytes belong to no sequence of its index, "
                "and are not read"
            )
        lengths = np.diff(ends[documents])
        return Found(lengths, np.arange(len(lengths)), notes)

    def read(self, first: int, stop: int) -> Iterator[Lists]:
        """Documents first..stop-1, about READ_BYTES at a time."""
        index = open_index(self.prefix)
        bounds = np.array(index.documents[first : stop + 1])
        low = int(bounds[0])
        length = index.lengths[low : bounds[-1]].astype(np.int64)
        pointer = np.array(index.pointers[low : bounds[-1]])
        _check_places(idx_path(self.prefix), low, length, pointer, index)
        ends = np.concatenate([[0], np.cumsum(length)])[bounds - low]
        for a, b in cuts(np.diff(ends) * index.dtype.itemsize, READ_BYTES):
            ours = slice(bounds[a] - low, bounds[b] - low)
            ids = _gather(bin_path(self.prefix), index.dtype, pointer[ours], length[ours])
            yield Lists(first + a, ids, ends[a : b + 1] - ends[a], None)


def _gather(path: Path, dtype: np.dtype, pointer: Ints, length: Ints) -> Ids:
    """Ids of some sequences, one after another. Only the bytes from the first to the last of them
    are mapped, and not for long: mapped pages count as memory. Narrow ids are widened."""
    out = np.empty(int(length.sum()), np.int32 if dtype.itemsize < 4 else dtype)
    if not len(out):
        return out
    pointer, length = pointer[length > 0], length[length > 0]
    width, low = dtype.itemsize, int(pointer.min())
    span = int((pointer + length * width).max()) - low
    try:
        data = np.asarray(np.memmap(path, dtype, "r", low, (span // width,)))
    except (OSError, ValueError) as e:
        raise UserError(f"{path} changed while it was read: {e}; run again") from e
    copy_lists(data, (pointer - low) // width, length, out)
    return out


@contextlib.contextmanager
def create(
    prefix: Path, dtype: npt.DTypeLike, lengths: Ints, overwrite: bool
) -> Iterator[npt.NDArray[np.integer]]:
    """A new IndexedDataset of documents of these lengths, one sequence each, in this order.

    Yields the ids of the .bin, flat and zero, to be filled: a mapped file, not memory. Both files
    appear when the block ends without an exception; the index last, so that a .idx under its name
    is complete. Raises UserError when they exist (unless `overwrite`) or cannot be written.
    """
    data, index = bin_path(prefix), idx_path(prefix)
    width, total = np.dtype(dtype).itemsize, int(lengths.sum())
    if len(lengths) and lengths.max() > _MAX_LENGTH:
        raise UserError(
            f"document {int(lengths.argmax())} has {lengths.max():,} tokens; a sequence of an "
            f"IndexedDataset holds at most {_MAX_LENGTH:,}"
        )
    for path in (data, index):
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no file, and in the way; choose another prefix")
        if path.exists() and not overwrite:
            raise UserError(f"{path} exists; choose another prefix, or set overwrite: true")
    temporary = unfinished(data), unfinished(index)
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise write_error(data, e) from e
    try:
        with temporary[0].open("wb") as f:
            if total:
                os.posix_fallocate(f.fileno(), 0, total * width)  # now, or a full disk is a SIGBUS
        yield np.asarray(np.memmap(temporary[0], dtype, "r+")) if total else np.zeros(0, dtype)
        with temporary[1].open("wb") as f:
            _write_index(f, np.dtype(dtype), lengths)
        for path in temporary:
            sync(path)
        index.unlink(missing_ok=True)  # the old index does not fit the new ids
        os.replace(temporary[0], data)
        os.replace(temporary[1], index)
        sync(data.parent)
    except OSError as e:
        raise write_error(data, e) from e
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)


def _write_index(f: BinaryIO, dtype: np.dtype, lengths: Ints) -> None:
    code = next(code for code, kind in DTYPES.items() if kind == dtype.type)
    f.write(_HEAD.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
    ends = np.cumsum(lengths)
    f.write(lengths.astype("<i4").data)
    f.write(((ends - lengths) * dtype.itemsize).astype("<i8").data)
    f.write(np.arange(len(lengths) + 1, dtype="<i8").data)
