"""Exact Jaccard similarity of two shingle sets: it decides what the bands propose."""

import numpy as np
from numba import njit

from dataprep.dedup.hashing import U64, frozen


def unique_sorted(shingles: U64) -> U64:
    """The set of one document's shingles, ascending: the form that `jaccard` takes."""
    return np.unique(shingles)


def jaccard(a: U64, b: U64) -> float:
    """|A and B| / |A or B| of two ascending arrays without repeats; 0 when both are empty.

    Two empty documents share nothing that could be compared, so they must not pass for copies.
    """
    common = _common(frozen(a), frozen(b))
    union = len(a) + len(b) - common
    return common / union if union else 0.0


@njit(nogil=True, cache=True)
def _common(a: U64, b: U64) -> int:
    """Size of the intersection, by a merge without a branch to mispredict."""
    i = j = common = 0
    while i < a.shape[0] and j < b.shape[0]:
        x, y = a[i], b[j]
        common += x == y
        i += x <= y
        j += y <= x
    return common
