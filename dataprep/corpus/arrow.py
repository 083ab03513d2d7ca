"""Arrow files of the work folder: written whole; mapped, or read by ranges where remote."""

import io
import math
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep.errors import UserError
from dataprep.files import atomic_path
from dataprep.storage import Place, open_reader

HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][iu][1248]|<f[248]|\|b1)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>[\d, ]*)\), \} *\n"
)
SMALL = 1 << 18  # bytes of a remote file asked for at a time when a part of it is wanted


def write_arrow(path: Place, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Place:
    """Writes an Arrow IPC file atomically, batch by batch as they come.

    Uncompressed, so that the verification of duplicates reads any document by memory map.
    """
    with (
        atomic_path(path, durable=False) as tmp,
        pa.OSFile(str(tmp), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return path


def open_arrow(path: Place) -> pa.ipc.RecordBatchFileReader:
    """A reader at random. Raises UserError when the file is missing or damaged."""
    try:
        if isinstance(path, Path):
            return pa.ipc.open_file(pa.memory_map(str(path)))
        return pa.ipc.open_file(pa.PythonFile(open_reader(path, SMALL), "r"))
    except (OSError, pa.ArrowException) as e:
        raise unreadable(path, e) from e


def unreadable(path: Place, cause: Exception) -> UserError:
    """The one wording for a damaged work file."""
    if isinstance(cause, FileNotFoundError):
        return UserError(f"{path} vanished; run again: what is there of finished work is kept")
    return UserError(f"cannot read {path}: {cause}; delete the work folder and run again")


def read_batches(path: Place) -> Iterator[pa.RecordBatch]:
    """All batches of an Arrow file, one at a time in memory: no page of it stays mapped."""
    try:
        with open_reader(path) as raw, pa.PythonFile(raw, "r") as source:
            reader = pa.ipc.open_file(source)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
    except (OSError, pa.ArrowException) as e:
        raise unreadable(path, e) from e


def read_columns(path: Place, names: list[str]) -> pa.Table:
    """Columns of an Arrow file; only their pages are touched."""
    reader = open_arrow(path)
    batches = [reader.get_batch(i).select(names) for i in range(reader.num_record_batches)]
    return pa.Table.from_batches(batches, pa.schema([reader.schema.field(n) for n in names]))


def write_array(path: Place, array: npt.NDArray[np.generic]) -> Place:
    """Writes one NumPy array (.npy, no pickle) atomically."""
    with atomic_path(path, durable=False) as tmp, tmp.open("wb") as f:
        np.save(f, np.ascontiguousarray(array), allow_pickle=False)
    return path


class Spool:
    """An array that grows at its end, on disk, and is written row by row: no more than a block of
    it is in memory. [rows, n, *item], or [n, *item] where `rows` is None.

    A context manager: its temporary file has no name, and ends with it.
    """

    def __init__(
        self, folder: Place, dtype: npt.DTypeLike, rows: int | None, item: tuple[int, ...] = ()
    ) -> None:
        """`folder`: of the temporary file, unless it is remote; `item`: shape of an entry."""
        self._folder = folder if isinstance(folder, Path) else None
        self._dtype, self._rows, self._item = np.dtype(dtype), rows, item
        self._lengths: list[int] = []

    def __enter__(self) -> "Spool":
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, block: npt.NDArray[Any]) -> None:
        """Appends [rows, k, *item], or [k, *item]."""
        self._lengths.append(block.shape[0 if self._rows is None else 1])
        self._file.write(np.ascontiguousarray(block, self._dtype).data)

    def save(self, path: Place) -> Place:
        """Writes all of it as write_array does."""
        rows = 1 if self._rows is None else self._rows
        shape = (sum(self._lengths), *self._item)
        shape = shape if self._rows is None else (rows, *shape)
        size = self._dtype.itemsize * int(np.prod(self._item))  # bytes of an entry
        starts = np.cumsum([0, *self._lengths])[:-1].tolist()
        with atomic_path(path, durable=False) as tmp, tmp.open("wb") as f:
            header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(f, header)
            for row in range(rows):
                for start, length in zip(starts, self._lengths):
                    self._file.seek((start * rows + row * length) * size)
                    f.write(self._file.read(length * size))
        return path


def read_array(path: Place, row: int | None = None) -> npt.NDArray[Any]:
    """An array that write_array has written, or one row of it; no file stays open.

    Raises UserError when the file is missing or damaged.
    """
    try:
        with open_reader(path) if row is None else open_reader(path, SMALL) as f:
            shape, dtype = _header(f)
            if row is not None:
                if len(shape) < 2 or not 0 <= row < shape[0]:
                    raise ValueError(f"no row {row} in an array of shape {shape}")
                shape = shape[1:]
                f.seek(row * math.prod(shape) * dtype.itemsize, 1)
            found = np.empty(shape, dtype)
            if f.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:
                raise EOFError("it ends too early")
            return found
    except (OSError, ValueError, EOFError, MemoryError) as e:
        raise unreadable(path, e) from e


def _header(f: io.BufferedReader) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a .npy file (NumPy Enhancement Proposal 1), as write_array writes it.

    Not by NumPy, which has Python parse it: in Python 3.11 that may fail with a SystemError when
    another thread parses too, for the depth is counted for all together.
    """
    if np.lib.format.read_magic(f) != (1, 0):
        raise ValueError("another version of .npy")
    header = f.read(int.from_bytes(f.read(2), "little"))
    found = HEADER.fullmatch(header)
    if found is None:
        raise ValueError(f"no header of an array of numbers: {header[:100]!r}")
    shape = tuple(int(size) for size in found["shape"].split(b",") if size.strip())
    return shape, np.dtype(found["dtype"].decode())
