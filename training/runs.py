"""Where documents begin and end in rows that do not say it: from audit/rows of their shard.

A row's run lengths are those of its pieces. When a piece fills the row to its end and its document
goes on in another row, the run counts the extra token too, for there is a target in it:

    row of S + 1 = 7 tokens     1 2 | 3 4 5 6 7        7 is the first token of another row
    run lengths                   2 |         5

A shard's audit is read when a row of it is first asked for. Held are 12 bytes a row of the whole
split and 4 bytes a piece of the shards read so far.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.manifest import Shard
from training.derive import Int32, Int64, RunLengths

COLUMNS = ["row", "start", "length", "file", "source_row", "token_start"]
CURE = "copy the whole output folder again, audit included, or build it with write.columns: compact"


class AuditRuns:
    """Run lengths of rows by their number in a split."""

    def __init__(self, out_dir: Path, shards: Sequence[Shard], seq_length: int) -> None:
        self._out_dir, self._shards, self._size = out_dir, shards, seq_length
        self._first = np.cumsum([0, *(shard.rows for shard in shards)])
        self._starts = np.full(self._first[-1], -1, np.int64)
        self._counts = np.zeros(self._first[-1], np.int32)
        self._pool = np.empty(1 << 12, np.int32)
        self._used = 0
        self._lock = Lock()  # several threads may ask

    def __call__(self, rows: Int64) -> RunLengths:
        """Run lengths of these rows.

        Raises UserError when an audit file is missing, is not the one that was written, or does
        not fit its shard.
        """
        starts = self._starts[rows]
        if (starts < 0).any():
            with self._lock:
                missing = rows[self._starts[rows] < 0]
                for i in np.unique(np.searchsorted(self._first, missing, "right") - 1).tolist():
                    self._add(i)
            starts = self._starts[rows]
        return self._pool, starts, starts + self._counts[rows]

    def _add(self, i: int) -> None:
        """Reads the audit of shard i."""
        shard = self._shards[i]
        path = self._out_dir / "audit" / "rows" / f"{Path(shard.path).stem}.parquet"
        try:
            if shard.audit_sha256 and sha256_file(path) != shard.audit_sha256:
                raise ValueError("its bytes have changed")
            counts, lengths = row_runs(pq.read_table(path, columns=COLUMNS), shard.rows, self._size)
        except (OSError, ValueError, KeyError, pa.ArrowException) as e:
            cause = f"{path}, which says where the documents of {shard.path} begin, cannot be read"
            raise UserError(f"{cause}: {e}; {CURE}") from e
        while self._used + len(lengths) > len(self._pool):
            self._pool = np.concatenate([self._pool, np.empty_like(self._pool)])
        self._pool[self._used : self._used + len(lengths)] = lengths
        rows = slice(self._first[i], self._first[i + 1])
        self._counts[rows] = counts
        # Last, and after the pool: another thread takes a start that is there as "all is there".
        self._starts[rows] = self._used + np.cumsum(counts) - counts
        self._used += len(lengths)


def row_runs(pieces: pa.Table, rows: int, seq_length: int) -> tuple[Int32, Int32]:
    """(runs of each row int32[rows], lengths of all runs, row after row) of a shard's pieces.

    Raises ValueError when they do not lie one behind the other in the rows.
    """
    row, start, length, source, token = (
        np.asarray(pieces[name]).astype(np.int64)
        for name in ("row", "start", "length", "source_row", "token_start")
    )
    by_place = np.lexsort((start, row))
    row, start, length = row[by_place], start[by_place], length[by_place]
    first = np.r_[True, row[1:] != row[:-1]] if len(row) else np.zeros(0, bool)
    expected = np.where(first, 0, np.roll(start + length, 1))
    outside = (row < 0) | (row >= rows) | (length <= 0) | (start + length > seq_length)
    if (outside | (start != expected)).any():
        raise ValueError("its pieces do not lie one behind the other in the rows of the shard")
    full = start + length == seq_length
    document = (_codes(pieces["file"])[by_place], source[by_place])
    lengths = length + (full & _go_on(*document, token[by_place], length, full))
    return np.bincount(row, minlength=rows).astype(np.int32), lengths.astype(np.int32)


def _codes(files: pa.ChunkedArray) -> Int64:
    """A number for each file name."""
    column = files.combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return np.asarray(column.indices).astype(np.int64)


def _go_on(
    file: Int64, source: Int64, token: Int64, length: Int64, asked: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which of the asked pieces end where another piece of the same document begins."""
    ask, later = np.flatnonzero(asked), np.flatnonzero(token > 0)
    both = np.concatenate([ask, later])
    keys = file[both], source[both], np.concatenate([(token + length)[ask], token[later]])
    order = np.lexsort(keys)
    new = np.zeros(len(both), bool)
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    group = np.empty(len(both), np.int64)
    group[order] = np.cumsum(new)
    begins = np.zeros(len(both) + 1, bool)
    begins[group[len(ask) :]] = True
    out = np.zeros(len(file), bool)
    out[ask] = begins[group[: len(ask)]]
    return out
