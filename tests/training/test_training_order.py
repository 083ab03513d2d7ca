"""The order of rows: a permutation by definition, the same for any ranks, resumed exactly."""

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UserError
from training import order
from training.order import Epoch, epoch_at, epoch_key, spans, steps_until

M = 2**64


def splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % M
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % M
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % M
    return x ^ (x >> 31)


def permuted(position: int, rows: int, key: int) -> int:
    """The definition, in plain Python."""
    bits = max(2, (rows - 1).bit_length())
    low = bits - bits // 2
    keys = [splitmix((key + r) % M) for r in range(24)]
    x = position
    while True:
        a, b = x >> low, x % 2**low
        for r in range(0, 24, 2):
            a ^= splitmix((keys[r] + b) % M) % 2 ** (bits // 2)
            b ^= splitmix((keys[r + 1] + a) % M) % 2**low
        x = (a << low) + b
        if x < rows:
            return x


def whole(rows: int, seed: int | None, epoch: int = 0, stream: int = 0) -> list[int]:
    return order.order(np.arange(rows), rows, seed, epoch, stream).tolist()


def test_the_order_by_eye() -> None:
    """These numbers may never change: checkpoints count along this order (order.NAME)."""
    assert order.NAME == "feistel-1"
    assert splitmix(0) == 0xE220A8397B1DCDAF  # the first output of the reference implementation
    assert whole(5, None) == [0, 1, 2, 3, 4]
    assert whole(11, 17) == [0, 1, 10, 9, 5, 3, 8, 4, 7, 6, 2]
    assert whole(11, 17, epoch=1) == [7, 3, 2, 4, 8, 1, 9, 0, 10, 6, 5]
    assert whole(11, 17, stream=1) == [5, 4, 3, 6, 10, 8, 7, 0, 1, 9, 2]


@given(st.integers(1, 300), st.integers(0, order.MAX_SEED), st.integers(0, 50), st.integers(0, 3))
def test_it_is_the_permutation_that_is_defined(
    rows: int, seed: int, epoch: int, stream: int
) -> None:
    made = whole(rows, seed, epoch, stream)
    assert sorted(made) == list(range(rows))
    key = splitmix((splitmix(seed) + epoch) % M)
    key = splitmix((key + stream) % M) if stream else key
    assert key == epoch_key(seed, epoch, stream)
    assert made == [permuted(i, rows, key) for i in range(rows)]


def test_large_data_sets_need_no_table() -> None:
    rows = 10**11
    some = order.order(np.array([0, 1, rows - 1]), rows, 3, 0)
    key = epoch_key(3, 0)
    assert some.tolist() == [permuted(i, rows, key) for i in (0, 1, rows - 1)]


def test_epochs_seeds_and_neighbours_look_unrelated() -> None:
    """Every place of every row about equally often, over 3000 epochs: chi-squared per cell."""
    rows, epochs = 13, 3000
    seen = np.zeros((rows, rows))
    steps = np.zeros(rows)
    for epoch in range(epochs):
        made = np.array(whole(rows, 5, epoch))
        seen[np.arange(rows), made] += 1
        np.add.at(steps, np.diff(made) % rows, 1)
    expected = epochs / rows
    assert ((seen - expected) ** 2 / expected).sum() / (rows - 1) ** 2 < 1.4
    expected = epochs  # a difference of two neighbours, rows - 1 of them, all rows - 1 alike
    assert ((steps[1:] - expected) ** 2 / expected).sum() / (rows - 2) < 3


def test_an_epoch_by_eye() -> None:
    assert epoch_at(0, 11, 4) == Epoch(0, 0, steps=2, step_rows=4, trimmed_rows=3)
    assert epoch_at(4, 11, 4) == Epoch(0, 4, steps=1, step_rows=4, trimmed_rows=3)
    assert epoch_at(8, 11, 4) == epoch_at(11, 11, 4) == Epoch(1, 0, 2, 4, 3)
    assert epoch_at(8, 11, 3) == Epoch(0, 8, steps=1, step_rows=3, trimmed_rows=0)
    assert epoch_at(4, 11, 4).rows == 4
    assert [steps_until(3, consumed, 11, 4) for consumed in (0, 4, 8, 11, 30, 33)] == [
        6, 5, 4, 4, 0, 0,
    ]  # fmt: skip


def test_fewer_rows_than_a_step_are_refused() -> None:
    told = "the data has 3 rows and one step takes 4 .* make the step smaller or the data larger"
    with pytest.raises(UserError, match=told):
        epoch_at(0, 3, 4)


def read(rows: int, ranks: int, batch: int, consumed: int = 0, epochs: int = 1) -> list[list[int]]:
    """Positions of each rank in order, with N added for each epoch."""
    return [
        [
            epoch * rows + p
            for epoch, positions in takewhile(
                lambda span: span[0] < epochs, spans(consumed, rows, ranks, rank, batch, 5)
            )
            for p in positions.tolist()
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize(("rows", "batch"), [(8, 1), (13, 1), (31, 3), (64, 4), (97, 2)])
def test_ranks_share_an_epoch(rows: int, batch: int, ranks: int) -> None:
    """Each row once, but for the last ones that fill no step; woven together, the order itself."""
    if rows < ranks * batch:
        with pytest.raises(UserError, match="make the step smaller"):
            read(rows, ranks, batch)
        return
    parts = read(rows, ranks, batch)
    trimmed = epoch_at(0, rows, ranks * batch).trimmed_rows
    assert trimmed == rows % (ranks * batch)
    assert {len(part) for part in parts} == {rows // (ranks * batch) * batch}
    woven = [row for some in zip(*parts) for row in some]
    assert woven == list(range(rows - trimmed))


@given(st.integers(1, 40), st.data())
def test_another_number_of_ranks_goes_on_anywhere(rows: int, data: st.DataObject) -> None:
    """Stop after any step, go on with other ranks and batch: nothing twice, nothing lost."""
    most = min(rows, 6)
    sizes = [(r, b) for r in range(1, most + 1) for b in range(1, most + 1) if r * b <= rows]
    first, second = data.draw(st.sampled_from(sizes)), data.draw(st.sampled_from(sizes))
    before = [row for some in zip(*read(rows, *first, epochs=2)) for row in some]
    step = first[0] * first[1]
    steps = data.draw(st.integers(0, len(before) // step))
    done = before[: steps * step]
    consumed = done[-1] + 1 if done else 0
    after = [row for some in zip(*read(rows, *second, consumed, epochs=3)) for row in some]
    seen = done + after
    assert seen == sorted(set(seen))
    lost = sorted(set(range(3 * rows)) - set(seen))
    trimmed = max(step, second[0] * second[1]) - 1
    assert all(row % rows >= rows - trimmed for row in lost)
    assert len(seen) + len(lost) == 3 * rows
