"""Packing: documents of any length become rows of equal length, with labels and masks."""

from dataclasses import dataclass
from typing import Literal

from dataprep.errors import UserError
from dataprep.pack.columns import Preset, check_columns, column_lengths, preset_name
from dataprep.pack.place import Ints, Pieces, place_best_fit, place_concat
from dataprep.pack.rows import IGNORE, Rows, make_rows

__all__ = [
    "IGNORE",
    "Pack",
    "Pieces",
    "Preset",
    "Rows",
    "check_columns",
    "column_lengths",
    "make_rows",
    "preset_name",
]


@dataclass(frozen=True)
class Pack:
    """How documents become rows."""

    seq_length: int = 4096
    """Slots in a row (S)."""
    strategy: Literal["concat", "best_fit"] = "best_fit"
    """concat: one after another, cut at row ends; best_fit: whole documents wherever they fit."""
    isolate_documents: bool = True
    """Documents in a row do not see each other: positions restart, their ends are stored."""
    max_documents: int = 128
    """Length of `actual_seq_len` (MindFormers: compressed_eod_mask_length); a row holds one
    document less, as its last entry is S. Without effect unless documents are isolated."""

    def __post_init__(self) -> None:
        if self.seq_length < 2:
            raise UserError(
                f"pack.seq_length is {self.seq_length}; it must be 2 or more, "
                "as a row of one token has no target"
            )
        if self.max_documents < 2:
            raise UserError(f"pack.max_documents is {self.max_documents}; it must be 2 or more")

    @property
    def ends(self) -> int:
        """Length of the `actual_seq_len` column; 0: no such column."""
        return self.max_documents if self.isolate_documents else 0

    def place(self, lengths: Ints) -> Pieces:
        """Pieces for documents of these lengths (int64[d], tokens, each >= 1)."""
        most = self.ends - 1 if self.ends else self.seq_length
        place = place_best_fit if self.strategy == "best_fit" else place_concat
        return place(lengths, self.seq_length, most)

    def max_rows(self, tokens: int, documents: int) -> int:
        """An upper bound on the rows of a shard, for sizing its file before it is packed.

        Best-fit decreasing leaves at most one row half empty or more, unless rows are closed by
        max_documents.
        """
        closed = documents // (self.ends - 1) if self.ends else 0
        return 2 * tokens // self.seq_length + closed + 2
