"""How duplicates are found."""

from dataclasses import dataclass
from typing import Literal

from dataprep.dedup.bands import choose_bands
from dataprep.errors import UserError


@dataclass(frozen=True)
class Dedup:
    """Exact duplicates by hash, near-duplicates by MinHash with every removal verified."""

    method: Literal["none", "exact", "minhash"] = "minhash"
    """none; exact: equal cleaned text; minhash: that, and near-duplicates."""
    ngram: int = 5
    """Words in a shingle; a Han, Kana, Thai, ... character counts as a word. Texts of fewer than
    two shingles' words (2 x ngram) are compared exactly only."""
    num_perm: int = 128
    """Hashes in a MinHash signature."""
    threshold: float = 0.8
    """Jaccard similarity of shingle sets at and above which a document is a duplicate."""
    verify: Literal["exact"] = "exact"
    """A candidate pair is a duplicate only if its exact Jaccard similarity says so."""
    min_recall: float = 0.995
    """Probability with which a pair at the threshold is found; sets the bands."""

    def __post_init__(self) -> None:
        if not 1 <= self.ngram <= 1000:
            raise UserError(f"dedup.ngram is {self.ngram}; it must be in 1..1000")
        if not 0 < self.threshold <= 1:
            raise UserError(f"dedup.threshold is {self.threshold}; it must be in (0, 1]")
        if not 0 < self.min_recall < 1:
            raise UserError(f"dedup.min_recall is {self.min_recall}; it must be in (0, 1)")
        if not 1 <= self.num_perm <= 4096:
            raise UserError(f"dedup.num_perm is {self.num_perm}; it must be in 1..4096")
        if self.method == "minhash":
            self.bands()

    @property
    def min_shingles(self) -> int:
        """A text of 2 x ngram words has ngram + 1 shingles. In shorter ones what shingles leave
        out (case, operators) may be all that matters: `C++` and `C#`."""
        return self.ngram + 1

    def bands(self) -> tuple[int, int]:
        """(bands, rows a band). Raises UserError when num_perm is too small for min_recall."""
        try:
            return choose_bands(self.num_perm, self.threshold, self.min_recall)
        except ValueError as e:
            raise UserError(f"dedup: {e}") from e
