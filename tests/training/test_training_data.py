"""The loader: what a batch holds, its order, and an exact resume at every position."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UserError
from dataprep.manifest import Manifest
from training.data import Epoch, eval_batches, plan_epoch, segments_from_ends, train_batches

WriteData = Callable[..., Path]


def first_ids(out_dir: Path, steps: int, rows: int, **options: int) -> list[list[int]]:
    """The first token of each row, batch by batch."""
    manifest = Manifest.load(out_dir)
    batches = train_batches(out_dir, manifest, rows, manifest.tokenizer.vocab_size, **options)
    return [batch["input_ids"][:, 0].tolist() for batch in islice(batches, steps)]


def test_a_batch_by_eye(write_data: WriteData) -> None:
    out_dir = write_data([[[5, 6, 7, 8, 1], [5, 9, 1]], [[4] * 12]], 12, 10)
    (batch,) = islice(train_batches(out_dir, Manifest.load(out_dir), 2, 10), 1)
    assert {name: rows.tolist() for name, rows in batch.items()} == {
        "input_ids": [[5, 6, 7, 8, 1, 5, 9, 1, 0, 0, 0, 0], [4] * 12],
        "labels": [
            [6, 7, 8, 1, -100, 9, 1, -100, -100, -100, -100, -100],
            [4] * 11 + [-100],
        ],
        "loss_mask": [[1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0], [1] * 11 + [0]],
        "position_ids": [[0, 1, 2, 3, 4, 0, 1, 2, 0, 0, 0, 0], list(range(12))],
        "segments": [[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2], [0] * 12],
    }
    assert all(rows.dtype == np.int32 for rows in batch.values())


def test_without_isolation_a_row_is_one_segment(write_data: WriteData) -> None:
    out_dir = write_data([[[5, 1], [6, 1]], [[7, 1]]], 4, 10, isolate=False)
    (batch,) = islice(train_batches(out_dir, Manifest.load(out_dir), 2, 10), 1)
    assert batch["segments"].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]


def test_segments_by_eye() -> None:
    ends = np.array([[5, 8, 12, 12], [12, 12, 12, 12], [1, 2, 3, 12]], np.int32)
    assert segments_from_ends(ends, 12).tolist() == [
        [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3],
    ]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5))
def test_segments_are_the_documents(lengths: list[int], padding: int) -> None:
    size = sum(lengths) + padding
    ends = np.cumsum(lengths if padding else lengths[:-1])
    padded = np.full((1, 9), size, np.int32)
    padded[0, : len(ends)] = ends
    expected = np.repeat(np.arange(len(lengths) + 1), [*lengths, padding])
    assert segments_from_ends(padded, size)[0].tolist() == expected.tolist()


def test_order_is_the_shards_order_and_the_rest_is_dropped(counted: WriteData) -> None:
    out_dir = counted(11)
    assert first_ids(out_dir, 5, 3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2], [3, 4, 5]]
    assert plan_epoch(Manifest.load(out_dir), 3) == Epoch(steps=3, rows=9, dropped_rows=2)


def test_shuffled_epochs_are_permutations_and_differ(counted: WriteData) -> None:
    out_dir = counted(12)
    order = [i for batch in first_ids(out_dir, 8, 3, shuffle_seed=5) for i in batch]
    assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert order[:12] != order[12:]
    assert first_ids(out_dir, 8, 3, shuffle_seed=6) != first_ids(out_dir, 8, 3, shuffle_seed=5)


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 5}])
def test_resume_at_every_position_of_three_epochs(
    counted: WriteData, options: dict[str, int]
) -> None:
    out_dir = counted(11)  # 3 steps of 3 rows, 2 rows dropped
    straight = first_ids(out_dir, 9, 3, **options)
    for done in range(10):
        rest = first_ids(out_dir, 9 - done, 3, consumed_rows=3 * done, **options)
        assert rest == straight[done:]


def test_eval_rows_all_count_once(counted: WriteData) -> None:
    rows = [[[i] * 6] for i in range(5)]
    out_dir = counted(6, eval_rows=rows)
    batches = list(eval_batches(out_dir, Manifest.load(out_dir), 2, 10, 6))
    assert [batch["input_ids"][:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 0]]
    assert [batch["loss_mask"].sum(1).tolist() for batch in batches] == [[5, 5], [5, 5], [5, 0]]
    assert len(list(eval_batches(out_dir, Manifest.load(out_dir), 2, 2, 6))) == 2


def test_fewer_rows_than_a_step_is_refused(counted: WriteData) -> None:
    with pytest.raises(UserError, match="has 3 rows and one step takes 4"):
        plan_epoch(Manifest.load(counted(3)), 4)


def test_an_id_outside_the_vocabulary_is_refused(counted: WriteData) -> None:
    out_dir = counted(6)
    batches = train_batches(out_dir, Manifest.load(out_dir), 2, 5)
    assert len(list(islice(batches, 2))) == 2
    with pytest.raises(UserError, match="input_ids has the id 5 .* outside the vocabulary of 5"):
        next(batches)


def test_a_label_outside_the_vocabulary_is_refused(write_data: WriteData) -> None:
    out_dir = write_data([[[1, 9]], [[1, 2]]], 4, 10)
    with pytest.raises(UserError, match="the id 9 .* outside the vocabulary of 9"):
        next(train_batches(out_dir, Manifest.load(out_dir), 2, 9))


def test_a_missing_or_short_shard_is_refused(counted: WriteData) -> None:
    out_dir = counted(6)
    manifest = Manifest.load(out_dir)
    shard = out_dir / manifest.splits["train"][1].path
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match="train-00001-of-00002.mindrecord or its .db is missing"):
        next(train_batches(out_dir, manifest, 2, 6))
    shard.unlink()
    with pytest.raises(UserError, match="is missing or cut short"):
        next(train_batches(out_dir, manifest, 2, 6))


def test_a_damaged_shard_is_a_user_error(counted: WriteData) -> None:
    out_dir = counted(6)
    manifest = Manifest.load(out_dir)
    shard = out_dir / manifest.splits["train"][0].path
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    with pytest.raises(UserError, match="cannot read the shards"):
        next(train_batches(out_dir, manifest, 2, 6))


@pytest.mark.parametrize("absent", ["labels", "actual_seq_len"])
def test_other_columns_are_refused(counted: WriteData, absent: str) -> None:
    out_dir = counted(6)
    manifest = Manifest.load(out_dir)
    columns = {name: n for name, n in manifest.columns.items() if name != absent}
    with pytest.raises(UserError, match=f"columns 'legacy', without {absent}; build it with"):
        next(train_batches(out_dir, replace(manifest, preset="legacy", columns=columns), 2, 6))
