"""Every column preset gives the same batch; ids and lengths that cannot be are named."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UserError
from dataprep.manifest import Manifest
from training.data import Loader
from training.derive import COLUMNS, Batch, Derive, fill, needed_columns, shifted, whole
from training.runs import row_runs

Packed = Callable[..., Path]
DOCUMENTS = [
    [5, 6, 7, 8, 1],
    [5, 9, 1],
    list(range(10, 31)),
    [2],
    [3],
    [4, 4],
    list(range(40, 49)),
    [50, 1],
    list(range(60, 76)),
    [9, 9, 9],
]
PRESETS: list[Any] = [
    "mindformers",
    "compact",
    "legacy",
    "legacy_labels",
    ["input_ids", "labels"],
    ["labels", "input_ids", "position_ids"],
    ["position_ids", "loss_mask", "labels", "input_ids"],
]


def batches(out_dir: Path, **options: Any) -> list[Batch]:
    with Loader(out_dir, batch_size=2, **options) as loader:
        return [{k: v.copy() for k, v in b.items()} for b in islice(loader, loader.epoch.steps)]


def equal(one: list[Batch], other: list[Batch]) -> bool:
    assert len(one) == len(other) > 0
    return all(
        list(a) == list(b) == list(COLUMNS)
        and all(a[name].dtype == b[name].dtype == np.int32 for name in COLUMNS)
        and all(a[name].tolist() == b[name].tolist() for name in COLUMNS)
        for a, b in zip(one, other)
    )


def test_a_batch_by_eye(packed: Packed) -> None:
    """Documents in order of shards: 0, 2, … and 1, 3, …; S = 6."""
    documents = [[1, 2], [8, 8, 8, 8, 8, 8, 8, 8], [3, 4, 5, 6, 7], [9]]
    out_dir = packed(documents, "compact", 6)
    with Loader(out_dir, batch_size=4, reader="direct") as loader:
        batch = next(loader)
    _ = -100
    assert {name: rows.tolist() for name, rows in batch.items()} == {
        "input_ids": [[1, 2, 3, 4, 5, 6], [7, 0, 0, 0, 0, 0], [8] * 6, [8, 8, 9, 0, 0, 0]],
        "labels": [[2, _, 4, 5, 6, 7], [_] * 6, [8] * 6, [8, _, _, _, _, _]],
        "loss_mask": [[1, 0, 1, 1, 1, 1], [0] * 6, [1] * 6, [1, 0, 0, 0, 0, 0]],
        "position_ids": [[0, 1, 0, 1, 2, 3], [0] * 6, [0, 1, 2, 3, 4, 5], [0, 1, 0, 0, 0, 0]],
        "segments": [[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0] * 6, [0, 0, 1, 2, 2, 2]],
    }


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("reader", ["mindspore", "direct"])
def test_all_presets_give_equal_arrays(packed: Packed, isolate: bool, reader: Any) -> None:
    presets = [*PRESETS, ["input_ids", "labels", "actual_seq_len"]] if isolate else PRESETS
    expected: list[Batch] = []
    for i, preset in enumerate(presets):
        out_dir = packed(DOCUMENTS, preset, isolate=isolate, name=f"data{i}")
        made = batches(out_dir, reader=reader, seed=3)
        expected = expected or made
        assert equal(made, expected), preset
    positions = [b["position_ids"].max() for b in expected]
    assert max(positions) == 7 and any(b["labels"][:, -1].max() > 0 for b in expected)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_stored_mask_of_targets_is_kept(packed: Packed, isolate: bool) -> None:
    """What chat data masks, in legacy_labels; there segments and positions come from the audit."""
    out_dir = packed([[1, 2, 3], [4, 5]], "legacy_labels", 6, shards=1, isolate=isolate)
    manifest = Manifest.load(out_dir)
    runs = row_runs(pq.read_table(out_dir / "audit/rows/train-00000-of-00001.parquet"), 1, 6)
    starts = np.array([0])
    derive = Derive(manifest, 100, lambda rows: (runs[1], starts, starts + runs[0]), str)
    stored = {
        "input_ids": np.array([[1, 2, 3, 4, 5, 0, 0]], np.int32),
        "labels": np.array([[-100, -100, 3, -100, 5, -100, -100]], np.int32),
    }
    batch = derive(stored, starts)
    assert batch["labels"].tolist() == [[-100, 3, -100, 5, -100, -100]]
    assert batch["loss_mask"].tolist() == [[0, 1, 0, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0] if isolate else [0, 1, 2, 3, 4, 0]]


LENGTHS = st.lists(st.integers(1, 9), min_size=0, max_size=6)


@given(LENGTHS, st.integers(0, 4), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_kernel_against_plain_python(
    lengths: list[int], padding: int, goes_on: bool, isolated: bool, seed: int
) -> None:
    size = max(1, sum(lengths) + padding)
    goes_on = goes_on and bool(lengths) and sum(lengths) == size
    ids = np.random.default_rng(seed).integers(0, 50, size + 1).astype(np.int32)
    runs = [*lengths[:-1], lengths[-1] + goes_on] if lengths else []
    owner = [k for k, n in enumerate(runs) for _ in range(n)]
    owner += [len(runs)] * (size + 1 - len(owner))
    used = sum(lengths)
    label = [
        int(ids[j + 1]) if owner[j] == owner[j + 1] and j < sum(runs) - 1 else -100
        for j in range(size)
    ]
    first = [owner.index(k) for k in owner]
    position = [(j - first[j] if isolated else j) if j < used else 0 for j in range(size)]
    pool = np.array(runs, np.int32)
    out = np.full((5, 1, size), 77, np.int32)
    none = np.zeros((0, 0), np.int32)
    bounds = np.array([0]), np.array([len(runs)])
    assert whole(ids[None], none, none, pool, *bounds, isolated, 50, *out) == -1
    assert out[0, 0].tolist() == ids[:size].tolist()
    assert out[1, 0].tolist() == label
    assert out[2, 0].tolist() == [int(v != -100) for v in label]
    assert out[3, 0].tolist() == position
    assert out[4, 0].tolist() == (owner[:size] if isolated else [0] * size)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5))
def test_segments_from_ends(lengths: list[int], padding: int) -> None:
    size = sum(lengths) + padding
    ends = np.full((1, 9), size, np.int32)
    ends[0, : len(lengths)] = np.cumsum(lengths)
    ids = np.zeros((1, size), np.int32)
    mask, segments = np.full((2, 1, size), 77, np.int32)
    assert shifted(ids, ids, ends, 50, mask, segments) == -1
    expected = np.repeat(np.arange(len(lengths) + 1), [*lengths, padding])
    assert segments[0].tolist() == expected.tolist()


@pytest.mark.parametrize("pool", [[3, 5], [-1, 3], [8]])
def test_lengths_that_do_not_fit_a_row_are_found(pool: list[int]) -> None:
    out = np.zeros((2, 1, 6), np.int32)
    bounds = np.array([0]), np.array([len(pool)])
    assert fill(np.array(pool, np.int32), *bounds, True, *out) == 0


@pytest.mark.parametrize("ends", [[3, 2, 6], [-1, 6, 6], [7, 6, 6]])
def test_ends_that_do_not_fit_a_row_are_found(ends: list[int]) -> None:
    ids = np.zeros((1, 6), np.int32)
    out = np.zeros((2, 1, 6), np.int32)
    assert shifted(ids, ids, np.array([ends], np.int32), 50, *out) == 0


@pytest.mark.parametrize("reader", ["mindspore", "direct"])
@pytest.mark.parametrize("preset", ["mindformers", "compact", "legacy"])
def test_an_id_outside_the_vocabulary_names_its_row(
    packed: Packed, preset: str, reader: Any
) -> None:
    out_dir = packed([[i] * 4 for i in range(12)], preset, 4)
    with Loader(out_dir, batch_size=2, reader=reader, vocab_size=7) as loader:
        told = (
            "input_ids has the id 8 in .*train-00000-of-00002.mindrecord row 4, outside the "
            "vocabulary of 7; raise model.vocab_size"
        )
        with pytest.raises(UserError, match=told):
            list(islice(loader, 6))
        with pytest.raises(UserError, match=told):  # again, and no quiet end
            list(islice(loader, 6))


def test_a_label_outside_the_vocabulary_is_refused(packed: Packed) -> None:
    """The last label of a row stands in no input_ids of it."""
    out_dir = packed([[1, 2, 3, 4, 9]], "mindformers", 4, shards=1)
    with pytest.raises(UserError, match="labels has the id 9 in .* row 0, outside .* of 9"):
        batches(out_dir, reader="direct", vocab_size=9)


def test_columns_without_labels_are_refused(packed: Packed) -> None:
    out_dir = packed(DOCUMENTS, ["input_ids", "position_ids"])
    with pytest.raises(UserError, match="without labels the last slot of a row has no target"):
        batches(out_dir)
    assert needed_columns(Manifest.load(packed(DOCUMENTS, name="m"))) == [
        "input_ids",
        "labels",
        "position_ids",
        "actual_seq_len",
    ]
