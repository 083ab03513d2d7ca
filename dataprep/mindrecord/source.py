"""Rows of many shards as one sequence, at the speed of memory."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.errors import UserError
from dataprep.mindrecord.ahead import map_ahead
from dataprep.mindrecord.chain import row_ends
from dataprep.mindrecord.decode import DamagedRow, decode_rows
from dataprep.mindrecord.encode import Int32, Int64
from dataprep.mindrecord.filemap import FileMap
from dataprep.mindrecord.header import Field
from dataprep.mindrecord.reader import CURE, map_shard, read_shard_header

BLOCK_BYTES = 1 << 20  # of arrays that one call decodes: few calls, and still in the cache
AHEAD_BYTES = 4 << 20  # the same in a pool, where handing a block over costs more


class IndexableSource:
    """The rows of several shards, ours or FileWriter's, in the order of the files.

        source = IndexableSource(paths)
        for batch in source.batches(order, 8):       # order: int64 of any rows, shuffled perhaps
            batch["input_ids"]                       # int32 [8, length]

    Also a source of mindspore.dataset.GeneratorDataset. It needs the data files only: a header
    tells which page a row is in, and the lengths of the page's rows where in it. That is found out
    when a row of the page is first asked for, so the first batch is quick whatever the number of
    shards. No file stays open. A row costs 4 bytes of memory. Any number of threads may read.

    Raises UserError, naming the file, when one is missing or damaged or has other columns than the
    first.
    """

    columns: dict[str, int]
    """Column -> length of its int32 array, in the order asked for."""
    starts: Int64
    """int64 [files + 1]: number of the first row of each file, and the number of rows."""
    names: list[str]
    """What each file is called inside. Another name than its own: it was renamed."""

    def __init__(self, files: Sequence[Path | str], columns: Sequence[str] | None = None) -> None:
        """Reads the headers of all files. `columns`: those to read; default: all."""
        self._paths = [Path(file) for file in files]
        self.names = []
        schema: dict[str, Field] = {}
        starts, file_ends, pages = [0], [], []
        for i, path in enumerate(self._paths):
            header = read_shard_header(path)
            self.names.append(header.name)
            if i == 0:
                schema, self._fields = header.schema, header.blob_fields
                self.columns = self._chosen(header.columns, columns)
            elif header.schema != schema:
                raise UserError(f"{path} {_difference(header.schema, schema)} {self._paths[0]}")
            for page in header.blobs:
                if page.end_row > page.first_row:
                    at = header.layout.offset(page.page_id)
                    pages.append((i, at, page.used, starts[-1] + page.first_row))
            starts.append(starts[-1] + header.rows)
            file_ends.append(header.end)
        if not pages:
            raise UserError(f"there are no rows to read in {len(self._paths)} shards")
        self.starts = np.array(starts)
        self._file_ends = file_ends
        # Of every blob page: file, byte offset, bytes, first row; address once its file is mapped.
        self._file, self._at, self._used, first = np.array(pages).T.copy()
        self._first = np.append(first, starts[-1])
        self._address = np.zeros(len(pages), np.int64)
        # The page of every 2**shift-th row, about one a page: from there to a row's is a step.
        self._shift = (starts[-1] // len(pages)).bit_length() - 1
        marks = np.arange(0, starts[-1], 1 << self._shift)
        self._marks = np.searchsorted(self._first, marks, side="right") - 1
        # Of every row: its end, counted in bytes from the page's start; 0 is not known yet.
        self._ends = np.zeros(starts[-1], np.uint32)
        self._maps: list[FileMap | None] | None = [None] * len(self._paths)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> tuple[Int32, ...]:
        """One row: an int32 array [length] per column. Raises IndexError when out of range."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self):,}")
        return tuple(values[0] for values in self.read(np.array([row])).values())

    def __enter__(self) -> "IndexableSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the files. Arrays that were read stay valid; they are copies."""
        self._maps = None

    def read(self, rows: npt.ArrayLike) -> dict[str, Int32]:
        """Rows by number, int64 [n], in that order, repeats too: int32 [n, length] per column.

        Raises UserError when a number is out of range or a row is damaged.
        """
        return self._fill(self._room(self._checked(rows)))

    def batches(
        self, order: npt.ArrayLike, batch: int, drop_remainder: bool = True, threads: int = 1
    ) -> Iterator[dict[str, Int32]]:
        """The rows of `order`, int64 [m], as int32 arrays [batch, length] per column.

        The last batch may be smaller without `drop_remainder`. Batches are decoded several at a
        time (about 1 MB of arrays) and are parts of larger arrays: keeping one keeps its
        neighbours. With `threads` > 1 as many threads decode ahead, up to `threads` blocks of 4 MB,
        which pays when cores are idle; 1 is the caller's own. Raises as `read`, and ValueError when
        `batch` or `threads` is below 1.
        """
        if batch < 1 or threads < 1:
            raise ValueError(f"batch is {batch}, threads {threads}; both must be at least 1")
        rows = self._checked(order)
        if drop_remainder:
            rows = rows[: len(rows) // batch * batch]
        return self._batches(rows, batch, threads)

    def _batches(self, rows: Int64, batch: int, threads: int) -> Iterator[dict[str, Int32]]:
        # The caller's thread makes the arrays: those of another come from memory that the system
        # takes back at once, and to get a fresh page costs as much as to decode into it.
        size = BLOCK_BYTES if threads == 1 else AHEAD_BYTES
        rooms = map(self._room, self._blocks(rows, batch, size))
        fill = self._fill
        for block in map(fill, rooms) if threads == 1 else map_ahead(fill, rooms, threads):
            for i in range(0, len(next(iter(block.values()))), batch):
                yield {name: values[i : i + batch] for name, values in block.items()}

    def _blocks(self, rows: Int64, batch: int, block_bytes: int) -> Iterator[Int64]:
        """Cuts rows into blocks of whole batches; the first is one batch, so that it comes soon."""
        most = max(1, block_bytes // (4 * sum(self.columns.values()) * batch))
        done, size = 0, 1
        while done < len(rows):
            yield rows[done : done + size * batch]
            done += size * batch
            size = min(2 * size, most)

    def _room(self, rows: Int64) -> tuple[Int64, dict[str, Int32]]:
        """The rows and empty arrays for them."""
        shapes = self.columns.items()
        return rows, {name: np.empty((len(rows), length), np.int32) for name, length in shapes}

    def _fill(self, room: tuple[Int64, dict[str, Int32]]) -> dict[str, Int32]:
        """Reads the rows of a room into its arrays, and returns these."""
        rows, arrays = room
        maps = self._maps  # held until the end, whatever another thread closes
        if maps is None:
            raise ValueError("rows are read after close()")
        starts, stops = np.empty_like(rows), np.empty_like(rows)
        done = 0
        while True:
            with self._lock:
                pages = (self._marks, self._shift, self._first, self._address)
                done = _locate(rows, done, *pages, self._ends, starts, stops)
            if done == len(rows):
                break
            self._walk(maps, int(np.searchsorted(self._first, rows[done], side="right")) - 1)
        try:
            decode_rows(starts, stops, [arrays.get(name) for name in self._fields])
        except DamagedRow as e:
            row = rows[e.row]
            file = int(np.searchsorted(self.starts, row, side="right")) - 1
            place = f"row {row - self.starts[file]} (row {row} of all)"
            raise UserError(f"{self._paths[file]} is damaged: {place}: {e}; {CURE}") from e
        return arrays

    def _walk(self, maps: list[FileMap | None], page: int) -> None:
        """Finds out where the rows of a page lie. Threads that meet here do the same thing."""
        file, first = self._file[page], self._first[page]
        path = self._paths[file]
        with self._lock:
            data = maps[file]
            if data is None:
                data = map_shard(path)
                if data.size < self._file_ends[file]:
                    raise UserError(f"{path} became shorter since it was opened; {CURE}")
                maps[file] = data
        stop = self._first[page + 1]
        address = data.address + self._at[page]
        try:
            ends = row_ends(address, self._used[page], stop - first)
        except ValueError as e:
            row = f"row {first - self.starts[file]}"
            raise UserError(f"{path} is damaged: in the page from {row} on, {e}; {CURE}") from e
        with self._lock:
            self._address[page] = address
            self._ends[first:stop] = ends

    def _chosen(self, found: dict[str, int], names: Sequence[str] | None) -> dict[str, int]:
        """The columns to read."""
        names = list(found) if names is None else list(names)
        lost = [name for name in names if name not in found]
        if lost or not names or len(set(names)) < len(names):
            what = f"no column {lost[0]!r}" if lost else f"no columns like {names}"
            raise UserError(
                f"{self._paths[0]} has {what}; its int32 arrays of fixed length are {list(found)}"
            )
        return {name: found[name] for name in names}

    def _checked(self, rows: npt.ArrayLike) -> Int64:
        numbers = np.ascontiguousarray(rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ValueError(f"rows must be int64 [n], not {numbers.dtype} {numbers.shape}")
        bad = numbers[(numbers < 0) | (numbers >= len(self))]
        if bad.size:
            raise UserError(
                f"row {bad[0]} is out of range: the shards have rows 0 to {len(self) - 1:,}"
            )
        return numbers.astype(np.int64)


def _difference(schema: dict[str, Field], first: dict[str, Field]) -> str:
    """What a file has that the first has not, as words between their names."""
    names = [n for n in sorted({*schema, *first}) if schema.get(n) != first.get(n)]
    told = [
        f"{s.type} {list(s.shape or [])}" if s else "none"
        for s in (schema.get(names[0]), first.get(names[0]))
    ]
    return f"has the field {names[0]!r} as {told[0]}, but {told[1]} is in"


@njit(nogil=True, cache=True)
def _locate(
    rows: Int64,
    done: int,
    marks: Int64,
    shift: int,
    first: Int64,
    address: Int64,
    ends: npt.NDArray[np.uint32],
    starts: Int64,
    stops: Int64,
) -> int:
    """Addresses of rows[done:]; the first whose page was not walked yet, or len(rows)."""
    for i in range(done, len(rows)):
        row = rows[i]
        end = np.int64(ends[row])
        if end == 0:
            return i
        page = marks[row >> shift]
        while first[page + 1] <= row:
            page += 1
        before = np.int64(ends[row - 1]) if row > first[page] else 0
        starts[i] = address[page] + before
        stops[i] = address[page] + end
    return len(rows)
