"""Arrow files on disk: written whole, read by memory map."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep.errors import UserError
from dataprep.files import atomic_path


def write_arrow(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Path:
    """Writes an Arrow IPC file atomically, batch by batch as they come.

    Uncompressed, so that the verification of duplicates reads any document by memory map.
    """
    with (
        atomic_path(path) as tmp,
        pa.OSFile(str(tmp), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return path


def open_arrow(path: Path) -> pa.ipc.RecordBatchFileReader:
    """A memory-mapped reader. Raises UserError when the file is missing or damaged."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except (OSError, pa.ArrowException) as e:
        raise _unreadable(path, e) from e


def _unreadable(path: Path, cause: Exception) -> UserError:
    return UserError(f"cannot read {path}: {cause}; delete the work folder and run again")


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """All batches of an Arrow file, one at a time in memory: no page of it stays mapped."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
    except (OSError, pa.ArrowException) as e:
        raise _unreadable(path, e) from e


def read_columns(path: Path, names: list[str]) -> pa.Table:
    """Columns of an Arrow file; only their pages are touched."""
    reader = open_arrow(path)
    batches = [reader.get_batch(i).select(names) for i in range(reader.num_record_batches)]
    return pa.Table.from_batches(batches, pa.schema([reader.schema.field(n) for n in names]))


def write_array(path: Path, array: npt.NDArray[np.generic]) -> Path:
    """Writes one NumPy array (.npy, no pickle) atomically."""
    with atomic_path(path) as tmp, tmp.open("wb") as f:
        np.save(f, array, allow_pickle=False)
    return path


def read_array(path: Path, row: int | None = None) -> npt.NDArray[Any]:
    """An array that write_array has written, or one row of it; no file stays open.

    Raises UserError when the file is missing or damaged.
    """
    try:
        if row is None:
            return np.load(path, allow_pickle=False)
        return np.load(path, mmap_mode="r", allow_pickle=False)[row].copy()
    except (OSError, ValueError, EOFError, IndexError) as e:
        raise _unreadable(path, e) from e
