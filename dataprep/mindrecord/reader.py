"""Reads a MindRecord shard without MindSpore: a memory map and the index."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import numpy as np

from dataprep.errors import UserError
from dataprep.mindrecord.decode import DamagedRow, decode_rows
from dataprep.mindrecord.encode import PREFIX, Int32, Int64
from dataprep.mindrecord.fields import Value, row_values
from dataprep.mindrecord.filemap import FileMap
from dataprep.mindrecord.header import Field, Header, read_header
from dataprep.mindrecord.index import index_path, read_index

T = TypeVar("T")
CURE = "copy the shard and its index again from a good copy, or build it again"


def read_shard_header(path: Path) -> Header:
    """The header of a data file. Raises UserError when it cannot be read or is damaged."""
    return _with_file(path, read_header)


def map_shard(path: Path) -> FileMap:
    """The map of a data file. Raises UserError when it cannot be read."""
    return _with_file(path, FileMap)


def _with_file(path: Path, work: Callable[[BinaryIO], T]) -> T:
    try:
        with path.open("rb") as file:
            return work(file)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from e
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; {CURE}") from e


class ShardReader:
    """Random access to the rows of one shard, ours or FileWriter's.

        with ShardReader(path) as shard:
            shard.read(0, len(shard))     # {"input_ids": int32 [rows, length], ...}
            shard.row(3)                  # all fields of a row

    Raises UserError, naming the file, the cause and the cure, when the shard or its index is
    missing, damaged, cut short or renamed.
    """

    columns: dict[str, int]
    """Column -> length of its int32 array, in alphabetical order. All that our files have."""
    schema: dict[str, Field]
    """All fields, in alphabetical order; FileWriter's may be no columns: text, other types."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header, map_ = _with_file(path, lambda file: (read_header(file), FileMap(file)))
        self._map: FileMap | None = map_
        self.columns, self.schema = header.columns, header.schema
        self._blob_fields = header.blob_fields
        self._read_locations(header)

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
        self._map = None

    def read(self, start: int, stop: int) -> dict[str, Int32]:
        """Rows start..stop-1 of `columns` as one new int32 array [stop - start, length] each.

        Raises IndexError outside 0 <= start <= stop <= len, UserError when a row is damaged.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows {start}..{stop} of {self.path}, which has {len(self)}")
        arrays = {c: np.empty((stop - start, n), np.int32) for c, n in self.columns.items()}
        data = self._opened()
        try:
            decode_rows(
                self._starts[start:stop] + data.address,
                self._stops[start:stop] + data.address,
                # Without any array, FileWriter's blob rows hold four bytes that mean nothing.
                [arrays.get(name) for name in self._blob_fields] or [None],
            )
        except DamagedRow as e:
            raise UserError(f"{self.path} is damaged: row {start + e.row}: {e}; {CURE}") from e
        return arrays

    def row(self, i: int) -> dict[str, Value]:
        """All fields of row i, 0 <= i < len: arrays, and int, float, str or bytes of `schema`.

        Raises IndexError outside 0 <= i < len, UserError when the row is damaged.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {self.path}, which has {len(self)}")
        data = self._opened()
        raw = data.content(self._raw_starts[i], self._raw_stops[i])
        blob = data.content(self._starts[i], self._stops[i])
        try:
            for part in (raw, blob):
                if int.from_bytes(part[:PREFIX], "little") != len(part) - PREFIX:
                    raise ValueError("its length contradicts the index")
            return row_values(self.schema, raw[PREFIX:], blob[PREFIX:])
        except ValueError as e:
            raise UserError(f"{self.path} is damaged: row {i}: {e}; {CURE}") from e

    def _opened(self) -> FileMap:
        if self._map is None:
            raise ValueError(f"{self.path} is read after close()")
        return self._map

    def _read_locations(self, header: Header) -> None:
        """Reads the index into byte ranges of the data file, int64 [rows] each."""
        path = index_path(self.path)
        if not path.is_file() and header.name != self.path.name:
            raise self._renamed(self.path, header.name)
        try:
            name, rows = read_index(path)
            pages = rows[:, [0, 3]]
            if len(rows) != header.rows or ((pages < 0) | (pages >= len(header.pages))).any():
                raise ValueError(f"it does not belong to the {header.rows:,} rows beside it")
        except ValueError as e:
            raise UserError(
                f"the index {path} is missing or damaged: {e}; "
                "mindprep verify --repair makes it again"
            ) from e
        # MindSpore goes by the name in the index; that in the header may be an earlier one.
        if name != self.path.name:
            raise self._renamed(path, name)
        self._raw_starts, self._raw_stops = self._ranges(header, rows[:, :3])
        self._starts, self._stops = self._ranges(header, rows[:, 3:])

    def _ranges(self, header: Header, places: Int64) -> tuple[Int64, Int64]:
        """First byte of each part and one past its last, from its page and the bytes there."""
        page, first, stop = places.T
        at = header.layout.header_size + page * header.layout.page_size
        # What lies outside the file is made empty, as no row is: reading it names the row.
        good = (first >= 0) & (first <= stop) & (stop <= header.end) & (at + stop <= header.end)
        return np.where(good, at + first, 0), np.where(good, at + stop, 0)

    def _renamed(self, path: Path, name: str) -> UserError:
        return UserError(
            f"{path} was renamed: inside it is called {name}, and MindRecord finds rows only "
            "under that name; rename it back (another folder is fine), or let mindprep verify "
            "--repair do it"
        )
