"""Writes one MindRecord shard, without MindSpore, in the bytes MindSpore's FileWriter writes.

    with ShardWriter(path, {"input_ids": 4096}, fit_layout(columns, rows_of_largest_shard)) as w:
        for block in blocks:                 # {"input_ids": int32 [n, 4096]}
            w.write(block)
    w.rows, w.bytes, w.sha256, w.index_sha256

What a call to `write` gets is encoded and written at once; only the sizes of the rows are kept.
"""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from dataprep.files import sha256_file, sync, unfinished, write_error
from dataprep.mindrecord.encode import PREFIX, Int32, encode_rows, row_sizes
from dataprep.mindrecord.header import Layout, check_columns, encode_header
from dataprep.mindrecord.index import encode_index, index_path
from dataprep.mindrecord.layout import row_bytes
from dataprep.mindrecord.pages import RAW_ROW, PageTable

BUFFER = 1 << 20  # encode about this many bytes at a time, so that they are still in the cache


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
        self._buffer = np.empty(self._chunk * row_bytes(columns), np.uint8)
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

        Raises ValueError when the arrays are not that, UserError when the disk is full.
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
        sizes = row_sizes(columns)
        offsets = encode_rows(columns, sizes, self._buffer)
        for run in self._table.place(sizes):
            self._file.seek(run.blob_offset)
            self._file.write(self._buffer[offsets[run.first] : offsets[run.stop]].data)
            self._file.seek(run.raw_offset)
            self._file.write(RAW_ROW * run.raw_rows)
        self.rows += len(sizes)
        self._encoded += int(offsets[-1])

    def _publish(self) -> None:
        """Finishes both files under their temporary names, then renames them."""
        if self.rows == 0:
            raise ValueError(f"{self.path} would hold no rows, which MindRecord cannot express")
        self._write_header()
        content = encode_index(self.path.name, self._table.locations())
        self._index_tmp.write_bytes(content)
        sync(self._tmp)
        sync(self._index_tmp)
        self.bytes = self._tmp.stat().st_size
        self.sha256 = sha256_file(self._tmp)
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
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses again
            self._file.close()
        self._tmp.unlink(missing_ok=True)
        self._index_tmp.unlink(missing_ok=True)
