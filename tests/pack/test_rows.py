"""Rows: literal examples first, then: every target exactly once, never across documents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UserError
from dataprep.pack import Pack, Preset, Rows, check_columns, column_lengths, make_rows
from dataprep.pack.rows import Int32

PAD = 9


def made(pack: Pack, documents: list[list[int]]) -> Rows:
    lengths = np.array([len(d) for d in documents], np.int64)
    pieces = pack.place(lengths)
    tokens = np.array([t for d in documents for t in d], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return make_rows(pieces, 0, pieces.rows, tokens, offsets, pack.seq_length, PAD, pack.ends)


def rows_of(
    pack: Pack, documents: list[list[int]], preset: Preset | list[str] = "mindformers"
) -> dict[str, Int32]:
    columns = column_lengths(preset, pack.seq_length, pack.ends)
    return made(pack, documents).columns(columns)


def lists(rows: dict[str, Int32]) -> dict[str, list[list[int]]]:
    return {name: values.tolist() for name, values in rows.items()}


def test_two_documents_in_a_row() -> None:
    """A document's last token never learns the next one's first (torchtitan PR 4075)."""
    rows = rows_of(Pack(6, "concat", max_documents=4), [[1, 2], [3, 4, 5]])
    assert lists(rows) == {
        "input_ids": [[1, 2, 3, 4, 5, PAD]],
        "labels": [[2, -100, 4, 5, -100, -100]],
        "loss_mask": [[1, 0, 1, 1, 0, 0]],
        "position_ids": [[0, 1, 0, 1, 2, 0]],
        "actual_seq_len": [[2, 5, 6, 6]],
    }


def test_the_presets_of_two_rows_by_eye() -> None:
    """Documents [1,2] and [3..8]: the second goes on in row 1, whose padding is the pad id."""
    pack = Pack(6, "concat", max_documents=4)
    documents = [[1, 2], [3, 4, 5, 6, 7, 8]]
    assert lists(rows_of(pack, documents, "legacy")) == {
        "input_ids": [[1, 2, 3, 4, 5, 6, 7], [7, 8, PAD, PAD, PAD, PAD, PAD]]
    }
    assert lists(rows_of(pack, documents, "legacy_labels")) == {
        "input_ids": [[1, 2, 3, 4, 5, 6, 7], [7, 8, PAD, PAD, PAD, PAD, PAD]],
        "labels": [
            [-100, 2, -100, 4, 5, 6, 7],
            [-100, 8, -100, -100, -100, -100, -100],
        ],
    }
    assert lists(rows_of(pack, documents, "compact")) == {
        "input_ids": [[1, 2, 3, 4, 5, 6, 7], [7, 8, PAD, PAD, PAD, PAD, PAD]],
        "segments": [[2, 5, 0, 0], [2, 0, 0, 0]],
    }
    assert lists(rows_of(pack, documents, ["labels", "input_ids", "actual_seq_len"])) == {
        "labels": [[2, -100, 4, 5, 6, 7], [8, -100, -100, -100, -100, -100]],
        "input_ids": [[1, 2, 3, 4, 5, 6], [7, 8, PAD, PAD, PAD, PAD]],
        "actual_seq_len": [[2, 6, 6, 6], [2, 6, 6, 6]],
    }


def test_compact_rows_of_shared_attention_keep_their_mask() -> None:
    pack = Pack(4, "concat", isolate_documents=False)
    assert lists(rows_of(pack, [[1, 2], [3, 4, 5]], "compact")) == {
        "input_ids": [[1, 2, 3, 4, 5], [5, PAD, PAD, PAD, PAD]],
        "loss_mask": [[1, 0, 1, 1], [0, 0, 0, 0]],
        "segments": [[5], [1]],
    }


def test_a_full_row_whose_last_document_ends_has_no_extra_token() -> None:
    rows = rows_of(Pack(4, "concat", max_documents=3), [[1, 2], [3, 4]], "compact")
    assert lists(rows) == {"input_ids": [[1, 2, 3, 4, PAD]], "segments": [[2, 2, 0]]}


def test_a_document_cut_at_the_row_end_keeps_its_target() -> None:
    rows = rows_of(Pack(3, "concat", max_documents=4), [[1, 2, 3, 4, 5]])
    assert rows["input_ids"].tolist() == [[1, 2, 3], [4, 5, PAD]]
    assert rows["labels"].tolist() == [[2, 3, 4], [5, -100, -100]]
    assert rows["actual_seq_len"].tolist() == [[3, 3, 3, 3], [2, 3, 3, 3]]


def test_a_full_row_of_two_documents() -> None:
    rows = rows_of(Pack(4, "concat", max_documents=3), [[1, 2], [3, 4]])
    assert rows["actual_seq_len"].tolist() == [[2, 4, 4]]


def test_positions_run_on_without_isolation() -> None:
    rows = rows_of(Pack(4, "concat", isolate_documents=False), [[1, 2], [3, 4]])
    assert rows["position_ids"].tolist() == [[0, 1, 2, 3]]
    assert rows["labels"].tolist() == [[2, -100, 4, -100]]
    assert "actual_seq_len" not in rows


def test_the_pad_id_in_a_document_is_not_padding() -> None:
    """Masks come from positions, never from ids (Megatron-Bridge PR 4660)."""
    rows = rows_of(Pack(4, "concat"), [[1, PAD, PAD]])
    assert rows["loss_mask"].tolist() == [[1, 1, 0, 0]]


def test_one_token_alone_has_no_target() -> None:
    assert rows_of(Pack(2, "best_fit"), [[7]])["loss_mask"].tolist() == [[0, 0]]


@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=30),
    strategy=st.sampled_from(["concat", "best_fit"]),
    seq_length=st.integers(2, 12),
    isolate=st.booleans(),
)
def test_every_token_but_the_first_is_a_target_once(
    lengths: list[int], strategy: str, seq_length: int, isolate: bool
) -> None:
    ids = iter(range(1000, 10**6))
    documents = [[next(ids) for _ in range(n)] for n in lengths]
    pack = Pack(seq_length, strategy, isolate, 5)
    rows = rows_of(pack, documents)
    follower = {a: b for d in documents for a, b in zip(d, d[1:])}
    trained = rows["loss_mask"] == 1
    pairs = dict(zip(rows["input_ids"][trained].tolist(), rows["labels"][trained].tolist()))
    assert pairs == follower
    assert trained.sum() == len(follower)
    assert ((rows["labels"] == -100) == ~trained).all()
    assert rows["input_ids"][rows["input_ids"] != PAD].size == sum(lengths)
    if isolate:
        assert (rows["actual_seq_len"][:, -1] == seq_length).all()
        for row_positions, ends in zip(rows["position_ids"], rows["actual_seq_len"]):
            starts = {0, *(int(e) for e in ends if e < seq_length)}
            assert all(row_positions[s] == 0 for s in starts)
    compact = rows_of(pack, documents, "compact")
    assert_compact_says_the_same(rows, compact, isolate)
    legacy = rows_of(pack, documents, "legacy_labels")
    assert (legacy["input_ids"] == compact["input_ids"]).all()
    assert (legacy["labels"][:, 0] == -100).all()
    assert (legacy["labels"][:, 1:] == rows["labels"]).all()
    assert made(pack, documents).trained == len(follower)


def assert_compact_says_the_same(
    rows: dict[str, Int32], compact: dict[str, Int32], isolate: bool
) -> None:
    """Row by row, in plain Python: all columns follow from the compact ones."""
    for r, (ids, segments) in enumerate(zip(compact["input_ids"], compact["segments"])):
        seq_length = len(ids) - 1
        labels, positions, ends = [-100] * seq_length, [0] * seq_length, []
        start = 0
        for length in segments[segments > 0].tolist():
            for j in range(start, min(start + length, seq_length)):
                positions[j] = j - start
                if isolate and j + 1 < start + length:
                    labels[j] = int(ids[j + 1])
            start += length
            ends += [start] if start < seq_length else []
        if not isolate:
            mask = compact["loss_mask"][r]
            labels = [int(ids[j + 1]) if mask[j] else -100 for j in range(seq_length)]
        assert rows["input_ids"][r].tolist() == ids[:-1].tolist()
        assert rows["labels"][r].tolist() == labels
        assert rows["position_ids"][r].tolist() == positions
        if isolate:
            padded = (ends + [seq_length] * 5)[:5]
            assert rows["actual_seq_len"][r].tolist() == padded


def test_a_slice_of_rows_equals_the_whole() -> None:
    pack = Pack(5, "best_fit", True, 4)
    lengths = np.arange(1, 30, dtype=np.int64)
    pieces = pack.place(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(offsets[-1], dtype=np.int32)
    whole = make_rows(pieces, 0, pieces.rows, tokens, offsets, 5, PAD, 4)
    part = make_rows(pieces, 7, 20, tokens, offsets, 5, PAD, 4)
    for name in ("tokens", "labels", "position_ids", "actual_seq_len", "segments"):
        assert (getattr(part, name) == getattr(whole, name)[7:20]).all()


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["labels"], "must name input_ids"),
        (["input_ids", "lables"], "there is no column 'lables'; there are input_ids, labels"),
        (["input_ids", "labels", "labels"], "names a column twice"),
        (["actual_seq_len", "input_ids"], "wants actual_seq_len last"),
    ],
)
def test_columns_that_cannot_be_stored(columns: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_columns(columns, isolate_documents=True)


def test_ends_of_documents_that_are_not_isolated_are_refused() -> None:
    with pytest.raises(UserError, match="set pack.isolate_documents: true"):
        check_columns(["input_ids", "actual_seq_len"], isolate_documents=False)
