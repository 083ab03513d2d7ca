"""audit/rows of one shard: which document's tokens stand in which slots, and where they go on.

    row 0   7 7 7 7     piece 0: document 7 from token 0
    row 1   9 9 . .     piece 1
    row 2   8 7 7 .     piece 2; piece 3: document 7 from token 4, where piece 0 goes on

A few numbers a piece; no token.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.trace import read_audit

Ints = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
COLUMNS = ("shard", "row", "start", "length", "file", "source_row", "token_start")


class Inconsistent(Exception):
    """A table of audit/rows that contradicts itself or the shard."""


@dataclass(frozen=True)
class Pieces:
    """The pieces of a shard, in the order of its slots. Arrays of p."""

    row: Ints
    start: Int32
    length: Int32
    document: Ints
    """Number of the record among all records of all inputs."""
    goes_on: Int32
    """The piece that the document goes on with, -1: it ends here."""
    opens: npt.NDArray[np.bool_]
    """It begins with the document's first token."""
    copies: tuple[Int32, Int32]
    """Pairs of pieces that begin with the same token of a document that was placed several times.
    """

    @property
    def tokens(self) -> int:
        """Slots in use."""
        return int(self.length.sum(dtype=np.int64))

    @property
    def targets(self) -> int:
        """Tokens but the first of each document."""
        return self.tokens - int(np.count_nonzero(self.goes_on < 0))


def read_pieces(
    path: Path, name: str, rows: int, seq_length: int, firsts: dict[str, tuple[int, int]]
) -> Pieces:
    """Reads and checks a table of audit/rows, of a shard called `name` with `rows` rows.

    `firsts`: input file -> number of its first record, and of the one after its last.

    Raises Inconsistent with the cause when the pieces do not fill rows 0..rows-1 from slot 0 on
    without a gap, or the pieces of a document do not join; UserError when it cannot be read.
    """
    table = read_audit(path, columns=COLUMNS)
    names = pc.unique(table["shard"]).to_pylist()
    if names != [name]:
        raise Inconsistent(
            f"it is of {', '.join(map(str, names[:3])) or 'no shard'}, not of {name}"
        )
    row, start, length, token = (
        _numbers(table, column) for column in ("row", "start", "length", "token_start")
    )
    _check_slots(row, start, length, rows, seq_length)
    document = _documents(table, firsts)
    if (token < 0).any():
        raise Inconsistent("it names a token before a document's first")
    goes_on, copies = _join(document, token, length)
    slots = start.astype(np.int32), length.astype(np.int32)
    return Pieces(row, *slots, document, goes_on, token == 0, copies)


def _numbers(table: pa.Table, name: str) -> Ints:
    column = table[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise Inconsistent(f"its column {name} is {column.type}, or has nulls")
    return np.asarray(column).astype(np.int64)


def _check_slots(row: Ints, start: Ints, length: Ints, rows: int, seq_length: int) -> None:
    """Pieces must follow each other: in a row each begins where the one before ends."""
    if not len(row):
        raise Inconsistent("it holds no pieces")
    opens = np.diff(row, prepend=-1)
    before = np.concatenate([[0], (start + length)[:-1]])
    wrong = (
        ~np.isin(opens, (0, 1))
        | (start != np.where(opens == 1, 0, before))
        | (length < 1)
        | (start + length > seq_length)
        | (row >= rows)
    )
    if wrong.any():
        p = int(np.argmax(wrong))
        raise Inconsistent(
            f"it names slots that do not exist or do not follow each other: row {row[p]}, slots "
            f"{start[p]}..{start[p] + length[p] - 1}, {rows:,} rows of {seq_length}"
        )
    if row[-1] != rows - 1:
        raise Inconsistent(f"it ends with row {row[-1]} of {rows:,}")


def _documents(table: pa.Table, firsts: dict[str, tuple[int, int]]) -> Ints:
    """Number of each piece's document."""
    file = table["file"].combine_chunks()
    if not pa.types.is_dictionary(file.type):
        file = file.dictionary_encode()
    names = file.dictionary.to_pylist()
    codes = np.asarray(file.indices)
    bounds = np.array([firsts.get(name, (0, 0)) for name in names], np.int64).reshape(-1, 2)[codes]
    source = _numbers(table, "source_row")
    unknown = (source < 0) | (source >= bounds[:, 1] - bounds[:, 0])
    if unknown.any():
        p = int(np.argmax(unknown))
        raise Inconsistent(
            f"it names record {source[p]} of {names[codes[p]]}, which the manifest does not know"
        )
    return bounds[:, 0] + source


def _join(document: Ints, token: Ints, length: Ints) -> tuple[Int32, tuple[Int32, Int32]]:
    """`goes_on` and `copies`.

    All documents are laid one after another, a gap of one between them, so that (document, token)
    is one number: `begin` and `end` of each piece.
    """
    code = np.unique(document, return_inverse=True)[1].reshape(-1)
    size = np.zeros(int(code.max()) + 1, np.int64)
    np.maximum.at(size, code, token + length)
    begin = (np.cumsum(size + 1) - size - 1)[code] + token
    end = begin + length
    order = np.argsort(begin, kind="stable")
    by_begin = begin[order]
    at = np.minimum(np.searchsorted(by_begin, end), len(order) - 1)
    goes_on = np.where(by_begin[at] == end, order[at], -1)
    # A document's pieces join if each that goes on meets one that begins there: as often, when it
    # was placed several times.
    if not np.array_equal(np.sort(end[token + length < size[code]]), np.sort(begin[token > 0])):
        raise Inconsistent(
            "the pieces of a document do not join: tokens are missing or twice there"
        )
    same = np.flatnonzero(by_begin[1:] == by_begin[:-1])
    pairs = order[same].astype(np.int32), order[same + 1].astype(np.int32)
    return goes_on.astype(np.int32), pairs
