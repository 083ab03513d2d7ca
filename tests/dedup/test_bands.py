"""Bands and buckets against their definitions."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dedup import band_keys, buckets, choose_bands

MASK = (1 << 64) - 1


@pytest.mark.parametrize(
    "num_perm, threshold, expected",
    [(128, 0.8, (21, 6)), (128, 0.7, (32, 4)), (256, 0.8, (32, 8)), (64, 1.0, (1, 64))],
)
def test_chosen_bands(num_perm: int, threshold: float, expected: tuple[int, int]) -> None:
    assert choose_bands(num_perm, threshold) == expected


@given(st.integers(1, 300), st.floats(0.05, 1), st.floats(0.5, 0.9999))
def test_chosen_bands_keep_their_promise_and_no_more_rows_do(
    num_perm: int, threshold: float, recall: float
) -> None:
    def found(rows: int) -> float:
        return 1 - (1 - threshold**rows) ** (num_perm // rows)

    try:
        bands, rows = choose_bands(num_perm, threshold, recall)
    except ValueError:
        assert found(1) < recall + 1e-12
        return
    assert bands == num_perm // rows
    assert found(rows) > recall - 1e-12
    assert all(found(more) < recall + 1e-12 for more in range(rows + 1, num_perm + 1))


def test_impossible_bands() -> None:
    with pytest.raises(ValueError, match="4 permutations find only 0.5904 .* raise num_perm"):
        choose_bands(4, 0.2)
    with pytest.raises(ValueError, match="less than the recall 1.0"):
        choose_bands(128, 0.8, 1.0)
    for wrong in [(0, 0.8, 0.9), (128, 0.0, 0.9), (128, 1.1, 0.9), (128, 0.8, 0.0)]:
        with pytest.raises(ValueError, match="no bands for"):
            choose_bands(*wrong)


def key_of(row: list[int], rows: int) -> int:
    """One band's key, in plain Python."""
    state = rows
    for i in range(0, rows, 2):
        word = row[i] | (row[i + 1] << 32 if i + 1 < rows else 0)
        state = (state ^ word) * 0x9E3779B97F4A7C15 & MASK
        state ^= state >> 32
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


@pytest.mark.parametrize("bands, rows", [(1, 1), (21, 6), (25, 5), (1, 128), (128, 1)])
def test_band_keys(bands: int, rows: int) -> None:
    sig = np.random.default_rng(0).integers(0, 2**32, (5, 128), dtype=np.uint32)
    sig[3] = sig[1]
    sig[4, :rows] = sig[0, :rows]
    keys = band_keys(sig, bands, rows)
    assert keys.dtype == np.uint64
    expected = [[key_of(r[b * rows :], rows) for r in sig.tolist()] for b in range(bands)]
    assert keys.tolist() == expected
    assert len(np.unique(keys)) == bands * 4 - 1


def test_bands_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="22 bands of 6 rows do not fit 128"):
        band_keys(np.zeros((1, 128), np.uint32), 22, 6)


def as_lists(members: np.ndarray, starts: np.ndarray) -> list[list[int]]:
    assert members.dtype == starts.dtype == np.int64
    assert starts[0] == 0 and starts[-1] == len(members)
    return [members[a:b].tolist() for a, b in pairwise(starts)]


def test_buckets() -> None:
    keys = np.array([7, 5, 7, 1, 5, 7, 9], np.uint64)
    docs = np.array([10, 11, 12, 13, 14, 15, 16])
    assert as_lists(*buckets(keys, docs)) == [[10, 12, 15], [11, 14]]
    assert as_lists(*buckets(keys, docs[::-1])) == [[11, 14, 16], [12, 15]]
    assert as_lists(*buckets(keys[3:], docs[3:])) == []
    assert as_lists(*buckets(keys[:1], docs[:1])) == []
    assert as_lists(*buckets(keys[:0], docs[:0])) == []


@given(st.lists(st.integers(0, 12), max_size=40), st.randoms(use_true_random=False))
def test_buckets_are_the_repeated_keys(keys: list[int], random: Random) -> None:
    docs = list(range(0, 3 * len(keys), 3))
    random.shuffle(docs)
    by_key: dict[int, list[int]] = {}
    for key, doc in zip(keys, docs):
        by_key.setdefault(key, []).append(doc)
    expected = sorted(sorted(found) for found in by_key.values() if len(found) > 1)
    # Spread over 64 bits or not: the filter before the sort must not matter.
    for factor in (1, 0x9E3779B97F4A7C15, 1 << 60):
        spread = np.array([key * factor & MASK for key in keys], np.uint64)
        if len(set(spread.tolist())) == len(by_key):
            assert as_lists(*buckets(spread, np.array(docs, np.int64))) == expected


def test_many_buckets() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 2**64, 50_000, dtype=np.uint64)
    keys[40_000:] = keys[:10_000]
    members, starts = buckets(keys, np.arange(50_000))
    pairs = np.stack([np.arange(10_000), np.arange(40_000, 50_000)], 1)
    assert np.array_equal(members.reshape(-1, 2), pairs)
    assert np.array_equal(starts, np.arange(0, 20_001, 2))
