"""Locality-sensitive hashing: which documents are worth comparing.

A signature is cut into `bands` bands of `rows` values. Two documents of Jaccard similarity t agree
in a whole band with probability t**rows, so they meet in at least one of them with probability
1 - (1 - t**rows)**bands (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, section 3.4).
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.dedup.hashing import I64, U64, fold64, frozen, mix64
from dataprep.dedup.minhash import U32

_S32 = np.uint64(32)


def choose_bands(num_perm: int, threshold: float, min_recall: float = 0.995) -> tuple[int, int]:
    """(bands, rows) with the most rows, hence the fewest needless comparisons, such that a pair at
    the threshold is found with a probability of at least `min_recall`; bands = num_perm // rows.

    Raises ValueError when the arguments are out of range or no choice reaches `min_recall`.
    """
    if num_perm < 1 or not 0 < threshold <= 1 or not 0 < min_recall <= 1:
        raise ValueError(
            f"no bands for num_perm {num_perm}, threshold {threshold}, recall {min_recall}; "
            "num_perm must be at least 1, threshold and recall above 0 and at most 1"
        )
    for rows in range(num_perm, 0, -1):
        bands = num_perm // rows
        # The missed share, not the found one, which rounds to 1.0 long before it gets there.
        if (1 - threshold**rows) ** bands <= 1 - min_recall:
            return bands, rows
    raise ValueError(
        f"{num_perm} permutations find only {1 - (1 - threshold) ** num_perm:.4f} of the pairs at "
        f"threshold {threshold}, less than the recall {min_recall} asked for; "
        "raise num_perm or the threshold"
    )


def band_keys(sig: U32, bands: int, rows: int) -> U64:
    """uint64[bands, d]: equal where two documents agree in a band (and by a chance of 2**-64).

    sig uint32[d, num_perm]. Raises ValueError when bands * rows exceeds num_perm.
    """
    if bands < 1 or rows < 1 or bands * rows > sig.shape[1]:
        raise ValueError(f"{bands} bands of {rows} rows do not fit {sig.shape[1]} permutations")
    keys = np.empty((bands, sig.shape[0]), np.uint64)
    _band_keys(frozen(sig), rows, keys)
    return keys


@njit(nogil=True, cache=True)
def _band_keys(sig: U32, rows: int, keys: U64) -> None:
    """Folds the rows of each band two at a time."""
    for i in range(keys.shape[1]):
        for band in range(keys.shape[0]):
            key = np.uint64(rows)
            row = band * rows
            stop = row + rows
            while row + 1 < stop:
                key = fold64(key, np.uint64(sig[i, row]) | np.uint64(sig[i, row + 1]) << _S32)
                row += 2
            if row < stop:
                key = fold64(key, np.uint64(sig[i, row]))
            keys[band, i] = mix64(key)


def buckets(keys: U64, docs: I64) -> tuple[I64, I64]:
    """The documents that share their key with at least one other, bucket by bucket.

    keys uint64[d], docs int64[d] (distinct, any order). Returns members int64[m] and starts
    int64[k+1]: bucket i is members[starts[i]:starts[i+1]], ascending; the buckets are in the order
    of their first members. Leave documents without shingles out of `docs`: their equal signatures
    would make one useless bucket of them all.
    """
    # Most keys occur once; dropping those before the sort is three times as fast as sorting all.
    maybe = _repeated(frozen(keys))
    keys, docs = keys[maybe], docs[maybe]
    order = np.argsort(keys)
    keys, docs = keys[order], docs[order]
    same = np.zeros(len(keys) + 1, bool)  # same[i]: keys i-1 and i are equal
    same[1:-1] = keys[1:] == keys[:-1]
    shared = same[1:] | same[:-1]
    opens = ~same[:-1][shared]
    docs = docs[shared]
    if not len(docs):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    # argsort leaves equal keys in an order that depends on the CPU; from here on it is canonical.
    starts = np.flatnonzero(opens)
    first = np.minimum.reduceat(docs, starts)[np.cumsum(opens) - 1]
    order = np.lexsort((docs, first))
    docs, first = docs[order], first[order]
    starts = np.flatnonzero(docs == first)  # its first member opens a bucket
    return docs, np.append(starts, len(docs)).astype(np.int64)


@njit(nogil=True, cache=True)
def _repeated(keys: U64) -> npt.NDArray[np.bool_]:
    """bool[d]: False only where no other key is equal, True elsewhere and by chance (1 in 5).

    A table of 4 to 8 bytes a key counts hashes of the keys up to two.
    """
    count = keys.shape[0]
    bits = 2
    while (1 << bits) < 4 * count:
        bits += 1
    shift = np.uint64(64 - bits)
    seen = np.zeros(1 << bits, np.uint8)
    for i in range(count):
        slot = mix64(keys[i]) >> shift
        seen[slot] = min(seen[slot] + 1, 2)
    out = np.empty(count, np.bool_)
    for i in range(count):
        out[i] = seen[mix64(keys[i]) >> shift] == 2
    return out
