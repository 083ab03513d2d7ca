"""Writes one MindRecord shard, without MindSpore, in the bytes MindSpore's FileWriter writes.

    with ShardWriter(path, {"input_ids": 4096}, fit_layout(columns, rows_of_largest_shard)) as w:
        for block in blocks:                 # {"input_ids": int32 [n, 4096]}
            w.write(block)
    w.rows, w.bytes, w.sha256, w.index_sha256

What a call to `write` gets is encoded at once, some megabytes at a time, and a thread writes each
such chunk to the file while the next one is made; only the sizes of the rows are kept. At the end
the file is flushed to disk while it is hashed.
"""

import contextlib
import hashlib
import mmap
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from dataprep.files import sync, unfinished, write_error
from dataprep.mindrecord.encode import PREFIX, Int32, Int64, UInt8, encode_rows
from dataprep.mindrecord.header import Layout, check_columns, encode_header
from dataprep.mindrecord.index import encode_index, index_path
from dataprep.mindrecord.layout import row_bytes
from dataprep.mindrecord.pages import RAW_ROW, PageTable, Run

# Encode about this many bytes at a time: less often handed to the thread than is felt, and still in
# the cache when it writes them.
BUFFER = 1 << 22


class ShardWriter:
    """Writes the data file `path` and its index `path` + ".db"; both appear complete or not at all.

    Until the `with` block ends without an exception, both have temporary names, though the final
    base name is already inside them. Then the index is put in its place, and the data file last:
    a data file under its final name is complete, index included. A failure leaves no temporary
    file and an earlier shard as it was.

    The bytes depend on the rows, columns, layout, description and base name alone.
    """

    rows: int
    """Rows written so far."""
    bytes: int
    """Size of the data file, known after the `with` block as all below."""
    sha256: str
    """Of the data file."""
    index_sha256: str
    """Of the index."""

    def __init__(
        self, path: Path, columns: dict[str, int], layout: Layout, desc: str = "mindprep"
    ) -> None:
        """`columns` maps a name to the length of its int32 array; `desc` goes into the header.

        Raises ValueError when a column is invalid or a row may not fit a page of the layout.
        """
        check_columns(columns)
        if row_bytes(columns) > layout.page_size:
            raise ValueError(
                f"a row takes up to {row_bytes(columns):,} bytes, a page of the layout holds "
                f"{layout.page_size:,}; use fit_layout"
            )
        self.path = path
        self.columns = dict(columns)
        self.layout = layout
        self.desc = desc
        self.rows = 0
        self._table = PageTable(layout)
        self._encoded = 0  # bytes of all rows
        self._chunk = max(1, BUFFER // row_bytes(columns))
        room = self._chunk * row_bytes(columns)
        # One is filled while the other is written.
        self._buffers = [np.empty(room, np.uint8), np.empty(room, np.uint8)]
        self._pool = ThreadPoolExecutor(2, "mindrecord")
        self._writing: Future[None] | None = None
        self._tmp = unfinished(path)
        self._index_tmp = unfinished(index_path(path))

    def __enter__(self) -> "ShardWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._tmp.open("wb")
        except OSError as e:
            raise write_error(self.path, e) from e
        return self

    def write(self, block: Mapping[str, Int32]) -> None:
        """Appends n rows: for every column an int32 array [n, length]. n may be 0.

        The arrays may be changed afterwards. Raises ValueError when they are not as said, UserError
        when the disk is full: at the latest one call later, or when the `with` block ends.
        """
        self._check(block)
        # Sorted, because the fields of a blob row are; contiguous, so that one kernel serves all.
        columns = [np.ascontiguousarray(block[name]) for name in sorted(self.columns)]
        for first in range(0, len(columns[0]), self._chunk):
            try:
                self._write_chunk([values[first : first + self._chunk] for values in columns])
            except OSError as e:
                self._discard()  # so that nothing can be published, even if this is caught
                raise write_error(self.path, e) from e

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._publish()
        except OSError as e:
            raise write_error(self.path, e) from e
        finally:
            self._discard()

    def _check(self, block: Mapping[str, Int32]) -> None:
        if block.keys() != self.columns.keys():
            raise ValueError(f"columns are {sorted(self.columns)}, the block has {sorted(block)}")
        rows = np.shape(next(iter(block.values())))[:1]
        for name, length in self.columns.items():
            values = np.asarray(block[name])
            if values.dtype != np.int32 or values.shape != (*rows, length):
                raise ValueError(
                    f"column {name!r} must be int32 {(*rows, length)}, "
                    f"not {values.dtype} {values.shape}"
                )

    def _write_chunk(self, columns: list[Int32]) -> None:
        buffer = self._buffers[0]
        offsets = encode_rows(columns, buffer)
        runs = list(self._table.place(np.diff(offsets)))
        self._settle()
        self._writing = self._pool.submit(self._put, runs, buffer, offsets)
        self._buffers.reverse()
        self.rows += len(offsets) - 1
        self._encoded += int(offsets[-1])

    def _put(self, runs: Sequence[Run], buffer: UInt8, offsets: Int64) -> None:
        """Writes a chunk to its places in the file."""
        for run in runs:
            self._file.seek(run.blob_offset)
            self._file.write(buffer[offsets[run.first] : offsets[run.stop]].data)
            self._file.seek(run.raw_offset)
            self._file.write(RAW_ROW * run.raw_rows)

    def _settle(self) -> None:
        """Waits until the last chunk is written; raises what went wrong with it."""
        if self._writing is not None:
            self._writing.result()

    def _publish(self) -> None:
        """Finishes both files under their temporary names, then renames them."""
        if self.rows == 0:
            raise ValueError(f"{self.path} would hold no rows, which MindRecord cannot express")
        self._settle()
        self._write_header()
        synced = self._pool.submit(sync, self._tmp)
        hashed = self._pool.submit(_sha256_mapped, self._tmp)
        content = encode_index(self.path.name, self._table.locations())
        self._index_tmp.write_bytes(content)
        sync(self._index_tmp)
        synced.result()
        self.bytes = self._tmp.stat().st_size
        self.sha256 = hashed.result()
        self.index_sha256 = hashlib.sha256(content).hexdigest()
        # An earlier data file must not meet the new index, not even if we are killed here.
        self.path.unlink(missing_ok=True)
        self._index_tmp.replace(index_path(self.path))
        self._tmp.replace(self.path)
        sync(self.path.parent)

    def _write_header(self) -> None:
        """Writes the header, the last part of the data file, and closes it."""
        several = len(self.columns) if len(self.columns) > 1 else 0
        before = 4 * sum(self.columns.values()) + PREFIX * (1 + several)
        header = encode_header(
            self.layout,
            self._table.pages,
            self.columns,
            self.path.name,
            self.desc,
            saved=before * self.rows - self._encoded,
        )
        if len(header) > self.layout.header_size:
            raise ValueError(
                f"{self.path}: the page list of {self.rows:,} rows needs a header of "
                f"{len(header):,} bytes, the layout has {self.layout.header_size:,}; "
                "give fit_layout the largest number of rows of any shard"
            )
        self._file.seek(0)
        self._file.write(header)
        self._file.close()

    def _discard(self) -> None:
        """Removes what is unfinished; after a success there is nothing left to remove."""
        self._pool.shutdown()  # waits: a thread may be writing
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses again
            self._file.close()
        self._tmp.unlink(missing_ok=True)
        self._index_tmp.unlink(missing_ok=True)


def _sha256_mapped(path: Path) -> str:
    """SHA-256 of our own unfinished file, in one call: between reads, a thread would wait for the
    interpreter, which the index is being made by.
    """
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as content:
        return hashlib.sha256(content).hexdigest()
