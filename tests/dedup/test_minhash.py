"""Signatures are those of datasketch, and an unbiased estimate."""

import warnings

import numpy as np
import numpy.typing as npt
import pytest
from datasketch import MinHash

from dataprep.dedup import permutations, signatures

SIZES = [0, 1, 7, 8, 9, 500]


def datasketch(shingles: npt.NDArray[np.uint64], num_perm: int, seed: int) -> list[int]:
    """Of the low halves, as datasketch's own SHA-1 default takes the low half of a 64-bit hash."""
    sketch = MinHash(num_perm, seed=seed, hashfunc=lambda h: h & 0xFFFFFFFF, scheme="affine32")
    sketch.update_batch(shingles.tolist())
    assert sketch.hashvalues.dtype == np.uint32
    return sketch.hashvalues.tolist()


@pytest.mark.parametrize("seed", [0, 1, 17, 2**32 - 1])
@pytest.mark.parametrize("num_perm", [1, 16, 100, 128, 131])
def test_permutations_are_those_of_datasketch(num_perm: int, seed: int) -> None:
    a, b = permutations(num_perm, seed)
    expected = MinHash(num_perm, seed=seed).permutations
    assert a.dtype == b.dtype == np.uint32
    assert np.array_equal(a, expected[0]) and np.array_equal(b, expected[1])


def test_the_default_seed_is_that_of_datasketch() -> None:
    assert np.array_equal(permutations(64), MinHash(64).permutations)


@pytest.mark.parametrize("seed", [1, 2, 17])
@pytest.mark.parametrize("num_perm", [1, 100, 128])
def test_signatures_are_those_of_datasketch(num_perm: int, seed: int) -> None:
    shingles = np.random.default_rng(seed).integers(0, 2**64, sum(SIZES), dtype=np.uint64)
    offsets = np.append(0, np.cumsum(SIZES))
    got = signatures(shingles, offsets, *permutations(num_perm, seed))
    assert got.dtype == np.uint32 and got.shape == (len(SIZES), num_perm)
    for i, row in enumerate(got.tolist()):
        assert row == datasketch(shingles[offsets[i] : offsets[i + 1]], num_perm, seed)


def test_extreme_hashes_and_repeats() -> None:
    shingles = np.array([0, 2**64 - 1, 2**32, 2**32 - 1, 0, 0, 5, 5, 5, 5, 5], np.uint64)
    got = signatures(shingles, np.array([0, len(shingles)]), *permutations(128))
    assert got[0].tolist() == datasketch(shingles, 128, 1)


def test_an_empty_set_is_all_ones() -> None:
    got = signatures(np.zeros(0, np.uint64), np.array([0, 0]), *permutations(8))
    assert got.tolist() == [[0xFFFFFFFF] * 8]


def test_offsets_may_start_above_zero() -> None:
    shingles = np.arange(30, dtype=np.uint64)
    got = signatures(shingles, np.array([10, 30]), *permutations(16))
    assert got[0].tolist() == datasketch(shingles[10:], 16, 1)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="num_perm is 0"):
        permutations(0)
    a, b = permutations(8)
    with pytest.raises(ValueError, match="8 factors and 7 summands"):
        signatures(np.zeros(0, np.uint64), np.zeros(1, np.int64), a, b[:7])


def test_large_sets_are_estimated_without_bias() -> None:
    """Two sets of 200k shingles that share a third of 400k: J = 0.5."""
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 2**64, 266_667, dtype=np.uint64)
    pair = np.concatenate([hashes[:200_000], hashes[66_667:]])
    offsets = np.array([0, 200_000, 400_000])
    estimates = []
    for seed in range(100):
        one, other = signatures(pair, offsets, *permutations(128, seed))
        estimates.append((one == other).mean())
    assert abs(np.mean(estimates) - 0.5) < 0.01


def test_no_warning_on_overflow() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        permutations(128, 5)
