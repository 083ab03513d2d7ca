"""The rows of a shard against what its ids and audit/rows say, block by block.

A document may go on in another row, before or after: the first token of every piece is kept, and
what the piece before has stored of it (its last label, or the extra token of its row). They are
compared when all rows have been seen.
"""

import numpy as np
import numpy.typing as npt

from dataprep.manifest import Manifest
from dataprep.verify.columns import Places, Special, expected, judge_ids, most_pieces
from dataprep.verify.pieces import Ints, Pieces
from dataprep.verify.rows import Rows

OF_IDS = (
    "input_ids outside of the vocabulary",
    "ids of special tokens inside of documents, where no text can have made them",
    "documents without their begin or end token",
    "padding that is not the pad id",
)
OF_COLUMNS = {
    "labels": "labels that are not the next token",
    "loss_mask": "loss_mask that is not 1 exactly where a target is",
    "position_ids": "position_ids that do not count their document",
    "actual_seq_len": "actual_seq_len that are not the ends of the documents",
    "segments": "segments that are not the lengths of the documents",
}
EXTRA = "last tokens (slot S) of input_ids that are not the next of their document"
COPIES = "pieces that differ from the same tokens in another copy of their document"
CROWDED = "rows of more documents than the columns can tell apart"


class Content:
    """Judges the rows of one shard: each block by `add`, in order, then `defects`."""

    def __init__(self, manifest: Manifest, pieces: Pieces, special: Special) -> None:
        self._manifest, self._pieces, self._special = manifest, pieces, special
        n = len(pieces.row)
        self._first = np.zeros(n, np.int32)  # token of every piece
        self._label = np.zeros(n, np.int32)  # last label of the pieces that go on
        self._extra = np.zeros(n, np.int32)  # extra token of the rows they end
        self._found: dict[str, tuple[int, int, int]] = {}  # what -> number, first row and slot

    def add(self, first: int, rows: Rows) -> None:
        """Judges rows first, first + 1, …: int32 [n, length] of each column of the manifest."""
        p, s, isolated = self._pieces, self._manifest.seq_length, self._manifest.isolate_documents
        ids = np.ascontiguousarray(rows["input_ids"])
        lo, hi = np.searchsorted(p.row, [first, first + len(ids)])
        part = slice(lo, hi)
        goes_on = p.goes_on[part] >= 0
        at = Places(p.row[part] - first, p.start[part], p.length[part], p.opens[part], goes_on)
        for what, (n, row, slot) in zip(OF_IDS, judge_ids(ids, at, s, self._special).tolist()):
            self._tell(what, n, first + row, slot)
        last = at.row[goes_on], (at.start + at.length - 1)[goes_on]
        self._first[part] = ids[at.row, at.start]
        self._extra[part] = ids[at.row, -1]
        for name, stored in rows.items():
            if name == "input_ids":
                continue
            want = expected(name, stored.shape[1], ids, at, s, isolated)
            if name == "labels" and stored.shape[1] == s:
                self._label[part][goes_on] = want[last] = stored[last]
            self._compare(name, first, stored, want)

    def defects(self) -> list[str]:
        """What was wrong, each with its number and first place, once all rows were added."""
        p, columns, s = self._pieces, self._manifest.columns, self._manifest.seq_length
        end = p.start + p.length
        goes_on = p.goes_on >= 0
        follows = self._first[p.goes_on]
        if columns.get("labels") == s:
            wrong = np.flatnonzero(goes_on & (self._label != follows))
            self._tell_pieces(OF_COLUMNS["labels"], wrong, end - 1)
        if columns["input_ids"] > s:
            wrong = np.flatnonzero(goes_on & (end == s) & (self._extra != follows))
            self._tell_pieces(EXTRA, wrong, end)
        a, b = p.copies
        self._tell_pieces(COPIES, b[self._first[a] != self._first[b]], p.start)
        nth = np.arange(len(p.row)) - np.searchsorted(p.row, p.row)
        most = most_pieces(columns, self._manifest.isolate_documents, s)
        self._tell_pieces(CROWDED, np.flatnonzero(nth == most), p.start)
        return [
            f"{n:,} {what}, the first in row {row:,}, slot {slot:,}"
            for what, (n, row, slot) in self._found.items()
        ]

    def _compare(
        self, name: str, first: int, stored: npt.NDArray[np.int32], want: npt.NDArray[np.int32]
    ) -> None:
        if np.array_equal(stored, want):
            return
        wrong = stored != want
        row, slot = divmod(int(np.argmax(wrong)), wrong.shape[1])
        self._tell(OF_COLUMNS[name], int(np.count_nonzero(wrong)), first + row, slot)

    def _tell_pieces(self, what: str, pieces: Ints, slots: npt.NDArray[np.int32]) -> None:
        if len(pieces):
            at = pieces.min()
            self._tell(what, len(pieces), int(self._pieces.row[at]), int(slots[at]))

    def _tell(self, what: str, n: int, row: int, slot: int) -> None:
        if n:
            before, *place = self._found.get(what, (0, row, slot))
            self._found[what] = (before + n, *min((row, slot), (place[0], place[1])))
