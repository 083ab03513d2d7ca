"""The order of a mix: folders alternate evenly, weights count exactly, one folder is itself."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UserError
from training import order
from training.mix import Mix, alternate, mix_of

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def reference(counts: list[int]) -> list[tuple[int, int]]:
    """(folder, which of its rows), sorted by when they are due."""
    due = [
        (Fraction(2 * k + 1, 2 * count), folder, k)
        for folder, count in enumerate(counts)
        for k in range(count)
    ]
    return [(folder, k) for _, folder, k in sorted(due)]


def places(counts: list[int], positions: list[int]) -> list[tuple[int, int]]:
    folders, nth = alternate(np.array(counts, np.int64), np.array(positions, np.int64))
    return list(zip(folders.tolist(), nth.tolist()))


def rows_of(mix: Mix, epoch: int) -> list[tuple[int, int]]:
    """(folder, row) of a whole epoch."""
    folders, nth = mix.places(np.arange(mix.rows))
    return [
        (int(f), int(mix.folder_order(int(f), epoch, nth[i : i + 1])[0]))
        for i, f in enumerate(folders)
    ]


def test_an_alternation_by_eye() -> None:
    assert [f for f, _ in places([4, 2], list(range(6)))] == [0, 1, 0, 0, 1, 0]
    assert [f for f, _ in places([1, 1, 1], [0, 1, 2])] == [0, 1, 2]
    assert [f for f, _ in places([9, 1], list(range(10)))] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]


@given(COUNTS)
def test_it_is_the_alternation_that_is_defined(counts: list[int]) -> None:
    expected = reference(counts)
    assert places(counts, list(range(len(expected)))) == expected


@given(COUNTS, st.data())
def test_it_may_begin_anywhere(counts: list[int], data: st.DataObject) -> None:
    expected = reference(counts)
    some = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1))))
    assert places(counts, some) == [expected[i] for i in some]


@given(COUNTS)
def test_no_folder_runs_ahead(counts: list[int]) -> None:
    """After any number of rows, each folder has given its share, within one row for each other."""
    done: Counter[int] = Counter()
    for i, (folder, _) in enumerate(reference(counts), 1):
        done[folder] += 1
        for f, count in enumerate(counts):
            assert abs(done[f] - i * Fraction(count, sum(counts))) < len(counts)


def test_large_counts_do_not_overflow() -> None:
    counts = [10**9, 10**9 - 7, 3]
    at = sum(counts) - 5
    last = places(counts, list(range(at, at + 5)))
    assert [k for f, k in last if f == 0][-1] == 10**9 - 1
    assert [k for f, k in last if f == 1][-1] == 10**9 - 8
    assert len(set(last)) == 5


def test_a_mix_too_large_to_count_is_refused() -> None:
    with pytest.raises(UserError, match="5 folders give 5,000,000,000 rows .* smaller weights"):
        mix_of([10**9] * 5, [1.0] * 5, None)


@pytest.mark.parametrize("seed", [None, 17])
def test_one_folder_of_weight_one_is_its_own_order(seed: int | None) -> None:
    mix = mix_of([13], [1.0], seed)
    for epoch in range(3):
        expected = order.order(np.arange(13), 13, seed, epoch).tolist()
        assert rows_of(mix, epoch) == [(0, row) for row in expected]


@pytest.mark.parametrize("seed", [None, 17])
def test_weights_count_exactly(seed: int | None) -> None:
    """Weight 2: each row twice an epoch. Weight 0.5: half, and the other half in the next."""
    mix = mix_of([10, 8, 7], [1.0, 2.0, 0.5], seed)
    assert (mix.counts, mix.rows) == ((10, 16, 4), 30)
    epochs = [Counter(rows_of(mix, epoch)) for epoch in range(14)]
    for epoch in epochs:
        assert [epoch[0, row] for row in range(10)] == [1] * 10
        assert [epoch[1, row] for row in range(8)] == [2] * 8
        assert sum(n for (f, _), n in epoch.items() if f == 2) == 4
    halves = [row for epoch in range(14) for f, row in rows_of(mix, epoch) if f == 2]
    for start in range(0, len(halves), 7):  # pass after pass, no row lost or repeated within one
        assert sorted(halves[start : start + 7]) == list(range(7))


def test_a_tiny_weight_still_gives_a_row() -> None:
    mix = mix_of([1000, 5], [1.0, 0.01], None)
    assert mix.counts == (1000, 1)
    assert [row for e in range(6) for f, row in rows_of(mix, e) if f] == [0, 1, 2, 3, 4, 0]


def test_folders_of_one_size_have_orders_of_their_own() -> None:
    mix = mix_of([50, 50], [1.0, 1.0], 3)
    rows = rows_of(mix, 0)
    assert [row for f, row in rows if f == 0] != [row for f, row in rows if f == 1]
