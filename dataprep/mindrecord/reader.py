"""Reads MindRecord shards of int32 arrays without MindSpore: a memory map and the index."""

import mmap
from pathlib import Path
from types import TracebackType

import numpy as np

from dataprep.errors import UserError
from dataprep.mindrecord.encode import Int32, decode_rows
from dataprep.mindrecord.header import Header, read_header
from dataprep.mindrecord.index import index_path, read_index

CURE = "copy the shard and its index again from a good copy, or build it again"


class ShardReader:
    """Random access to the rows of one shard that `ShardWriter` wrote.

        with ShardReader(path) as shard:
            shard.read(0, len(shard))     # {"input_ids": int32 [rows, length], ...}

    Raises UserError, naming the file, the cause and the cure, when the shard or its index is
    missing, damaged, cut short or renamed.
    """

    columns: dict[str, int]
    """Column -> length of its int32 array, in the order of the header (alphabetical)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                header = read_header(file)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise UserError(f"cannot read {path}: {e.strerror or e}") from e
        except ValueError as e:
            raise UserError(f"{path} is damaged: {e}; {CURE}") from e
        try:
            self._check_name(path, header.name)
            self._read_locations(header)
        except BaseException:
            self._map.close()
            raise
        self.columns = header.columns
        self._data = np.frombuffer(self._map, np.uint8)

    def __len__(self) -> int:
        return len(self._starts)

    def __enter__(self) -> "ShardReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the file. Arrays that were read stay valid; they are copies."""
        self._data = np.zeros(0, np.uint8)
        self._map.close()

    def read(self, start: int, stop: int) -> dict[str, Int32]:
        """Rows start..stop-1 as one new int32 array [stop - start, length] per column.

        Raises IndexError outside 0 <= start <= stop <= len, UserError when a row is damaged.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows {start}..{stop} of {self.path}, which has {len(self)}")
        try:
            arrays = decode_rows(
                self._data,
                self._starts[start:stop],
                self._stops[start:stop],
                list(self.columns.values()),
            )
        except ValueError as e:
            raise UserError(f"{self.path} is damaged: from row {start} on, {e}; {CURE}") from e
        return dict(zip(self.columns, arrays))

    def row(self, i: int) -> dict[str, Int32]:
        """Row i, 0 <= i < len, as one int32 array [length] per column."""
        return {name: values[0] for name, values in self.read(i, i + 1).items()}

    def _read_locations(self, header: Header) -> None:
        """Reads the index into byte ranges of the data file, int64 [rows] each."""
        path = index_path(self.path)
        try:
            name, rows = read_index(path)
            page, first, stop = rows.T
            if len(rows) != header.rows or ((page < 0) | (page >= header.pages)).any():
                raise ValueError(f"it does not belong to the {header.rows:,} rows beside it")
        except ValueError as e:
            raise UserError(f"the index {path} is missing or damaged: {e}; {CURE}") from e
        self._check_name(path, name)
        at = header.layout.header_size + page * header.layout.page_size
        self._starts, self._stops = at + first, at + stop

    def _check_name(self, path: Path, name: str) -> None:
        if name != self.path.name:
            raise UserError(
                f"{path} was renamed: inside it is called {name}, and MindRecord finds rows only "
                f"under that name; rename it back (another folder is fine) or build it again"
            )
