"""The integer mixing that the kernels of this package share.

All arithmetic is on uint64 and wraps modulo 2**64, so every CPU gives the same bits. None of it is
meant to withstand an attacker; what must not be crafted uses BLAKE2b (`exact.py`).

numba caches a compiled kernel by the time of the file that defines it, not of those it imports:
after a change here, or of a constant in `words.py`, delete the package's `__pycache__`.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S27, _S30, _S31, _S32 = (np.uint64(s) for s in (27, 30, 31, 32))


@njit(nogil=True, cache=True)
def mix64(z: np.uint64) -> np.uint64:
    """A bijection of 64 bits in which each input bit flips each output bit about half the time.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014; constants "Mix13" by David Stafford).
    """
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@njit(nogil=True, cache=True)
def fold64(state: np.uint64, word: np.uint64) -> np.uint64:
    """Takes one more 64-bit word into a running hash; for a fixed state a bijection of the word."""
    z = (state ^ word) * _GOLDEN
    return z ^ (z >> _S32)


def frozen(array: npt.NDArray) -> npt.NDArray:
    """The same memory, C-contiguous and read-only.

    Arrow's buffers are read-only and NumPy's are not, which are two types to numba: without this
    every kernel would be compiled twice.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
