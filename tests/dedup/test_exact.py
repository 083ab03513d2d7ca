"""Exact hashes and exact similarity."""

import hashlib

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dataprep.batch import text_buffers
from dataprep.dedup import first_of_equal, jaccard, text_hashes, unique_sorted


def hashes_of(texts: list[str]) -> np.ndarray:
    return text_hashes(*text_buffers(pa.array(texts, pa.large_string())))


def test_text_hashes_are_blake2b() -> None:
    got = hashes_of(["", "abc", "中文"])
    assert got.dtype == np.uint64 and got.shape == (3, 2)
    for text, row in zip(["", "abc", "中文"], got):
        assert row.astype("<u8").tobytes() == hashlib.blake2b(text.encode()).digest()[:16]


def test_text_hashes_of_a_slice_and_of_nothing() -> None:
    texts = pa.array(["x", "abc", "y"], pa.large_string())
    assert np.array_equal(text_hashes(*text_buffers(texts[1:2])), hashes_of(["abc"]))
    assert hashes_of([]).shape == (0, 2)


def test_the_first_of_equal_texts_stays() -> None:
    texts = ["cat", "dog", "cat", "Cat", "cat", "dog", ""]
    assert first_of_equal(hashes_of(texts)).tolist() == [0, 1, 0, 3, 0, 1, 6]
    assert first_of_equal(hashes_of([])).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_both_halves_of_a_hash_count(pairs: list[tuple[int, int]]) -> None:
    got = first_of_equal(np.array(pairs, np.uint64).reshape(-1, 2))
    assert got.dtype == np.int64
    assert got.tolist() == [pairs.index(pair) for pair in pairs]


def test_jaccard() -> None:
    a, b = np.array([1, 2, 3, 4], np.uint64), np.array([2, 3, 4, 5], np.uint64)
    none = np.zeros(0, np.uint64)
    assert jaccard(a, b) == 0.6
    assert jaccard(a, a) == 1.0
    assert jaccard(a, none) == jaccard(none, a) == jaccard(none, none) == 0.0


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_jaccard_of_sets(a: list[int], b: list[int]) -> None:
    x, y = (unique_sorted(np.array(v, np.uint64)) for v in (a, b))
    assert x.dtype == np.uint64 and x.tolist() == sorted(set(a))
    union = len(set(a) | set(b))
    assert jaccard(x, y) == jaccard(y, x) == (len(set(a) & set(b)) / union if union else 0.0)
