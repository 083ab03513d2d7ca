"""MinHash signatures, bit for bit those of datasketch 2 (scheme "affine32").

A signature is the minimum of each of `num_perm` permutations over a document's shingles; two
documents agree in one position with a probability of their Jaccard similarity (Broder: On the
resemblance and containment of documents, 1997).

datasketch 2 takes a 32-bit hash, which for its own SHA-1 default is the low half of the 64-bit one;
here too it is the low half of a shingle's hash. That is mixed by MurmurHash3's 32-bit finaliser
and permuted by a*x + b modulo 2**32 with an odd `a`, a bijection: unlike the older "(a*x + b) mod
prime, cut to 32 bits", it adds no collisions that would push up the estimate for large sets. An
empty set has the signature 0xFFFFFFFF everywhere.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.dedup.hashing import I64, U64, frozen

U32 = npt.NDArray[np.uint32]

_EMPTY = np.uint32(0xFFFFFFFF)
_F1 = np.uint32(0x85EBCA6B)
_F2 = np.uint32(0xC2B2AE35)
_S13, _S16 = np.uint32(13), np.uint32(16)


def permutations(num_perm: int, seed: int = 1) -> tuple[U32, U32]:
    """The factors a (odd) and summands b, each uint32[num_perm], drawn as datasketch draws them.

    Raises ValueError when `num_perm` is below 1.
    """
    if num_perm < 1:
        raise ValueError(f"num_perm is {num_perm}; a signature needs at least 1 permutation")
    # RandomState, not Generator: NumPy promises that its streams never change.
    random = np.random.RandomState(seed)
    a = random.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = random.randint(0, 1 << 32, num_perm, dtype=np.uint32)
    return a, b


def signatures(shingles: U64, offsets: I64, a: U32, b: U32) -> U32:
    """uint32[d, num_perm]: the minima over shingles[offsets[i]:offsets[i+1]] of each permutation.

    Order and repeats of shingles do not matter. Raises ValueError when a and b differ in length.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} factors and {len(b)} summands; each permutation needs both")
    out = np.empty((len(offsets) - 1, len(a)), np.uint32)
    _signatures(frozen(shingles), frozen(offsets), frozen(a), frozen(b), out)
    return out


@njit(nogil=True, cache=True)
def _fmix32(shingle: np.uint64) -> np.uint32:
    """MurmurHash3's finaliser (Austin Appleby, public domain) of the low half of a hash."""
    x = np.uint32(shingle)
    x = np.uint32(np.uint32(x ^ (x >> _S16)) * _F1)
    x = np.uint32(np.uint32(x ^ (x >> _S13)) * _F2)
    return np.uint32(x ^ (x >> _S16))


@njit(nogil=True, cache=True)
def _signatures(shingles: U64, offsets: I64, a: U32, b: U32, out: U32) -> None:
    """Eight shingles to a pass over the permutations, so that a signature's row is loaded and
    stored an eighth as often; the inner loop is what LLVM vectorises."""
    num_perm = a.shape[0]
    for d in range(offsets.shape[0] - 1):
        row = out[d]
        row[:] = _EMPTY
        i = offsets[d]
        stop = offsets[d + 1]
        while i + 8 <= stop:
            x0, x1 = _fmix32(shingles[i]), _fmix32(shingles[i + 1])
            x2, x3 = _fmix32(shingles[i + 2]), _fmix32(shingles[i + 3])
            x4, x5 = _fmix32(shingles[i + 4]), _fmix32(shingles[i + 5])
            x6, x7 = _fmix32(shingles[i + 6]), _fmix32(shingles[i + 7])
            for j in range(num_perm):
                p, q = a[j], b[j]
                m0 = min(np.uint32(p * x0 + q), np.uint32(p * x1 + q))
                m1 = min(np.uint32(p * x2 + q), np.uint32(p * x3 + q))
                m2 = min(np.uint32(p * x4 + q), np.uint32(p * x5 + q))
                m3 = min(np.uint32(p * x6 + q), np.uint32(p * x7 + q))
                row[j] = min(row[j], min(min(m0, m1), min(m2, m3)))
            i += 8
        while i < stop:
            x = _fmix32(shingles[i])
            for j in range(num_perm):
                row[j] = min(row[j], np.uint32(a[j] * x + b[j]))
            i += 1
