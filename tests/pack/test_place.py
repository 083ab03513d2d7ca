"""Placement: every token exactly once, rows never over-full."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.pack import Pack


def layout(strategy: str, lengths: list[int], seq_length: int, **kw: object) -> list[str]:
    """Rows drawn with one letter a slot: a = document 0; '.' = padding."""
    pieces = Pack(seq_length=seq_length, strategy=strategy, **kw).place(np.array(lengths, np.int64))
    rows = [["."] * seq_length for _ in range(pieces.rows)]
    for r, s, d, n in zip(pieces.row, pieces.start, pieces.document, pieces.length):
        assert rows[r][s : s + n] == ["."] * n
        rows[r][s : s + n] = chr(ord("a") + d) * n
    return ["".join(row) for row in rows]


def test_concat_draws_as_documented() -> None:
    assert layout("concat", [5, 2, 3, 1], 4) == ["aaaa", "abbc", "ccd."]


def test_best_fit_draws_as_documented() -> None:
    """Lengths 5, 2, 3, 1 in a window of 4: all 11 tokens are placed (trl 4554)."""
    assert layout("best_fit", [5, 2, 3, 1], 4) == ["aaaa", "bbd.", "ccca"]


def test_rows_close_at_the_document_limit() -> None:
    assert layout("concat", [1, 1, 1], 8, max_documents=3) == ["ab......", "c......."]
    assert layout("best_fit", [1, 1, 1], 8, max_documents=3) == ["ab......", "c......."]


def test_nothing_to_place() -> None:
    assert layout("concat", [], 4) == layout("best_fit", [], 4) == []


@given(
    strategy=st.sampled_from(["concat", "best_fit"]),
    lengths=st.lists(st.integers(1, 40), max_size=60),
    seq_length=st.integers(2, 17),
    max_documents=st.integers(2, 6),
    isolate=st.booleans(),
)
def test_every_token_is_placed_once(
    strategy: str, lengths: list[int], seq_length: int, max_documents: int, isolate: bool
) -> None:
    pack = Pack(seq_length, strategy, isolate, max_documents)
    pieces = pack.place(np.array(lengths, np.int64))
    seen = [np.zeros(n, int) for n in lengths]
    slots = np.zeros((pieces.rows, seq_length), int)
    for r, s, d, t, n in zip(
        pieces.row, pieces.start, pieces.document, pieces.token_start, pieces.length
    ):
        seen[d][t : t + n] += 1
        slots[r, s : s + n] += 1
    assert all((x == 1).all() for x in seen)
    assert slots.max(initial=0) <= 1
    assert (np.bincount(pieces.row, minlength=pieces.rows) > 0).all()
    if isolate:
        assert np.bincount(pieces.row, minlength=1).max() <= max_documents - 1
    # Sorted, and a row is filled from its start without gaps: padding is at the end.
    key = pieces.row * seq_length + pieces.start
    assert (np.diff(key) > 0).all()
    assert (np.diff(slots, axis=1) <= 0).all()
    assert pieces.rows <= pack.max_rows(sum(lengths), len(lengths))


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60))
def test_best_fit_never_cuts_what_fits(lengths: list[int]) -> None:
    pieces = Pack(16, "best_fit").place(np.array(lengths, np.int64))
    assert len(pieces.row) == len(lengths)


def test_best_fit_equals_the_textbook_algorithm() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 64, 500)
    free: list[int] = []
    for n in sorted(lengths, reverse=True):
        fitting = [i for i, f in enumerate(free) if f >= n]
        if fitting:
            free[min(fitting, key=lambda i: free[i])] -= n
        else:
            free.append(64 - n)
    pieces = Pack(64, "best_fit", False).place(lengths)
    used = np.bincount(pieces.row, pieces.length)
    assert sorted(64 - used) == sorted(free)


@pytest.mark.parametrize("bad", [{"seq_length": 1}, {"max_documents": 1}])
def test_impossible_sizes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        Pack(**bad)
