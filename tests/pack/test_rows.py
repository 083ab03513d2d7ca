"""Rows: literal examples first, then: every target exactly once, never across documents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pack import Pack, make_rows
from dataprep.pack.rows import Int32

PAD = 9


def rows_of(pack: Pack, documents: list[list[int]]) -> dict[str, Int32]:
    lengths = np.array([len(d) for d in documents], np.int64)
    pieces = pack.place(lengths)
    tokens = np.array([t for d in documents for t in d], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return make_rows(pieces, 0, pieces.rows, tokens, offsets, pack.seq_length, PAD, pack.ends)


def test_two_documents_in_a_row() -> None:
    """A document's last token never learns the next one's first (torchtitan PR 4075)."""
    rows = rows_of(Pack(6, "concat", max_documents=4), [[1, 2], [3, 4, 5]])
    assert {k: v.tolist() for k, v in rows.items()} == {
        "input_ids": [[1, 2, 3, 4, 5, PAD]],
        "labels": [[2, -100, 4, 5, -100, -100]],
        "loss_mask": [[1, 0, 1, 1, 0, 0]],
        "position_ids": [[0, 1, 0, 1, 2, 0]],
        "actual_seq_len": [[2, 5, 6, 6]],
    }


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
    rows = rows_of(Pack(seq_length, strategy, isolate, 5), documents)
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


def test_a_slice_of_rows_equals_the_whole() -> None:
    pack = Pack(5, "best_fit", True, 4)
    lengths = np.arange(1, 30, dtype=np.int64)
    pieces = pack.place(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(offsets[-1], dtype=np.int32)
    whole = make_rows(pieces, 0, pieces.rows, tokens, offsets, 5, PAD, 4)
    part = make_rows(pieces, 7, 20, tokens, offsets, 5, PAD, 4)
    for name, column in part.items():
        assert (column == whole[name][7:20]).all()
