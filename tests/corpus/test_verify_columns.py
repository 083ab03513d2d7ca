"""verify judges every preset's columns from the ids and audit/rows alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.corpus import BuildConfig, Write
from dataprep.manifest import Manifest
from dataprep.mindrecord import ShardReader
from dataprep.pack import Pack
from dataprep.readers import Input
from dataprep.verify import verify
from dataprep.verify.columns import Places, expected
from tests.corpus.resealed import AUDIT, SHARD, Rows, built, edit_audit, edit_rows, kept, pieces_of

Make = Callable[..., BuildConfig]
Pieces = list[dict[str, Any]]
S = 64
PRESETS: dict[str, Any] = {
    "mindformers": "mindformers",
    "legacy": "legacy",
    "legacy_labels": "legacy_labels",
    "compact": "compact",
    "custom": ["loss_mask", "input_ids", "position_ids"],
    "ids only": ["input_ids"],
}
KINDS = [(name, isolated) for name in PRESETS for isolated in (True, False)]


@pytest.fixture
def make(config_for: Make) -> Callable[..., Path]:
    """`make(preset, isolated)`: a folder of rows of 64 slots."""

    def folder(preset: str, isolated: bool, **pack: Any) -> Path:
        pack = {"seq_length": S, "max_documents": 16, "isolate_documents": isolated, **pack}
        return built(config_for(pack=Pack(**pack), write=Write(shards=3, columns=PRESETS[preset])))

    return folder


def by_hand(name: str, length: int, isolated: bool) -> list[list[int]]:
    """The contract's two rows: documents [1,2], [3,4,5,6,7], where the 7 stands elsewhere, and
    [1,2], [3,4,5]."""
    ids = np.array([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 9, 9]], np.int32)
    at = Places(
        row=np.array([0, 0, 1, 1]),
        start=np.array([0, 2, 0, 2], np.int32),
        length=np.array([2, 4, 2, 3], np.int32),
        opens=np.array([True, True, True, True]),
        goes_on=np.array([False, True, False, False]),
    )
    return expected(name, length, ids, at, 6, isolated).tolist()


def test_columns_by_eye() -> None:
    no = -100
    # The last label of row 0 is left to Content: its token may be in another block.
    assert by_hand("labels", 6, True) == [[2, no, 4, 5, 6, no], [2, no, 4, 5, no, no]]
    assert by_hand("labels", 7, True) == [[no, 2, no, 4, 5, 6, 7], [no, 2, no, 4, 5, no, no]]
    assert by_hand("loss_mask", 6, True) == [[1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]]
    assert by_hand("position_ids", 6, True) == [[0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 0]]
    assert by_hand("position_ids", 6, False) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 0]]
    assert by_hand("actual_seq_len", 4, True) == [[2, 6, 6, 6], [2, 5, 6, 6]]
    assert by_hand("segments", 4, True) == [[2, 5, 0, 0], [2, 3, 0, 0]]
    assert by_hand("segments", 1, False) == [[7], [5]]


@pytest.mark.parametrize(("preset", "isolated"), KINDS)
@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_each_preset_verifies(
    make: Callable[..., Path], preset: str, isolated: bool, strategy: str
) -> None:
    out = make(preset, isolated, strategy=strategy)
    verdict = verify(out)
    assert (verdict.defects, verdict.notes, verdict.unread) == ([], [], 0)
    fast = verify(out, fast=True)
    assert (fast.defects, fast.notes) == ([], ["--fast: MindSpore's reader was not asked"])
    assert (fast.rows, fast.tokens, fast.shards) == (verdict.rows, verdict.tokens, 4)


def cut_row(pieces: Pieces) -> int:
    """A row whose last document goes on in another."""
    begins = {(p["file"], p["source_row"], p["token_start"]) for p in pieces}
    return next(
        p["row"]
        for p in pieces
        if p["start"] + p["length"] == S
        and (p["file"], p["source_row"], p["token_start"] + p["length"]) in begins
    )


def padded_row(pieces: Pieces) -> tuple[int, int]:
    """A row of two documents or more that ends in two slots of padding or more, and their first."""
    last = {p["row"]: p["start"] + p["length"] for p in pieces}
    several = {p["row"] for p in pieces if p["start"] > 8}  # room for a mistake before the border
    return next((row, end) for row, end in last.items() if end < S - 1 and row in several)


def border(pieces: Pieces, row: int) -> int:
    """The first slot of a row's second document."""
    return next(p["start"] for p in pieces if p["row"] == row and p["start"] > 0)


def put(column: str, row: int, slot: int, value: Any) -> Callable[[Rows], None]:
    """Sets one number, or changes it by a function."""

    def change(rows: Rows) -> None:
        old = int(rows[column][row, slot])
        rows[column][row, slot] = value(old) if callable(value) else value
        assert rows[column][row, slot] != old, "the case changes nothing"

    return change


def wrong_labels(out: Path) -> dict[str, Callable[[Rows], None]]:
    pieces = pieces_of(out)
    row, end = padded_row(pieces)
    edge, cut = border(pieces, row), cut_row(pieces)
    length = Manifest.load(out).columns["labels"]
    on = length - S  # 1: a target keeps its own place
    with ShardReader(out / SHARD) as reader:
        ids = {r: reader.row(r)["input_ids"] for r in (row, cut)}
    return {
        "another token": put("labels", row, 3, lambda old: old + 1),
        "a target left out": put("labels", row, 3, -100),
        "across a border": put("labels", row, edge - 1 + on, int(ids[row][edge])),
        "in the padding": put("labels", row, end + on, 5),
        "shifted twice": put("labels", row, 0 if not on else 1, int(ids[row][2])),
        "after a cut": put("labels", cut, S - 1 + on, lambda old: old + 1),
        "left out after a cut": put("labels", cut, S - 1 + on, -100),
    } | ({"the first slot": put("labels", row, 0, int(ids[row][0]))} if on else {})


def wrong_mask(out: Path) -> dict[str, Callable[[Rows], None]]:
    pieces = pieces_of(out)
    row, end = padded_row(pieces)
    return {
        "a target less": put("loss_mask", row, 1, 0),
        "a border more": put("loss_mask", row, border(pieces, row) - 1, 1),
        "the padding": put("loss_mask", row, end, 1),
        "after a cut": put("loss_mask", cut_row(pieces), S - 1, 0),
        "two": put("loss_mask", row, 0, 2),
    }


def wrong_positions(out: Path) -> dict[str, Callable[[Rows], None]]:
    row, end = padded_row(pieces_of(out))

    def all_one_on(rows: Rows) -> None:
        rows["position_ids"][row, :end] += 1

    return {
        "one": put("position_ids", row, 3, 4),
        "the padding": put("position_ids", row, end, end),
        "off by one": all_one_on,
    }


def wrong_ends(out: Path) -> dict[str, Callable[[Rows], None]]:
    row, end = padded_row(pieces_of(out))
    return {
        "one less": put("actual_seq_len", row, 0, lambda old: old - 1),
        "the last": put("actual_seq_len", row, 15, end),
    }


def wrong_segments(out: Path) -> dict[str, Callable[[Rows], None]]:
    pieces = pieces_of(out)
    row, _ = padded_row(pieces)
    cut = cut_row(pieces)
    with ShardReader(out / SHARD) as reader:
        last = int(np.flatnonzero(reader.row(cut)["segments"])[-1])
        several = reader.columns["segments"] > 1

    def move(rows: Rows) -> None:
        rows["segments"][row, :2] += (1, -1)

    def join(rows: Rows) -> None:
        runs = rows["segments"][row]
        runs[:-1] = (runs[0] + runs[1], *runs[2:])

    cases = {
        "a token more": put("segments", row, 0, lambda old: old + 1),
        "the extra token not counted": put("segments", cut, last, lambda old: old - 1),
        "zero": put("segments", row, 0, 0),
    }
    return cases | ({"a border moved": move, "two documents as one": join} if several else {})


CASES = {
    "labels": (wrong_labels, "labels that are not the next token"),
    "loss_mask": (wrong_mask, "loss_mask that is not 1 exactly where a target is"),
    "position_ids": (wrong_positions, "position_ids that do not count their document"),
    "actual_seq_len": (wrong_ends, "actual_seq_len that are not the ends of the documents"),
    "segments": (wrong_segments, "segments that are not the lengths of the documents"),
}


def check_cases(out: Path, cases: dict[str, Callable[[Rows], None]], told: str) -> None:
    """Each case alone must be found, and be the only thing that is wrong."""
    for name, change in cases.items():
        with kept(out):
            edit_rows(out, change)
            defects = verify(out, fast=True).defects
        assert len(defects) == 1 and told in defects[0] and SHARD in defects[0], (name, defects)


@pytest.mark.parametrize(("preset", "isolated"), KINDS)
def test_wrong_columns_under_right_hashes(
    make: Callable[..., Path], preset: str, isolated: bool
) -> None:
    """Every column a preset stores, but the ids."""
    out = make(preset, isolated)
    for column in Manifest.load(out).columns:
        if column != "input_ids":
            cases, told = CASES[column]
            check_cases(out, cases(out), told)


@pytest.mark.parametrize(("preset", "isolated"), KINDS)
def test_wrong_ids_under_right_hashes(
    make: Callable[..., Path], preset: str, isolated: bool
) -> None:
    out = make(preset, isolated)
    manifest = Manifest.load(out)
    info = manifest.tokenizer
    row, end = padded_row(pieces_of(out))
    edge, cut = border(pieces_of(out), row), cut_row(pieces_of(out))
    wrong = {
        "input_ids outside of the vocabulary": (row, 3, info.vocab_size),
        "1 input_ids outside of the vocabulary": (row, 3, -1),
        "ids of special tokens inside of documents": (row, 3, info.pad_id),
        "1 ids of special tokens inside of documents": (row, 3, info.eos_id),
        "documents without their begin or end token": (row, edge - 1, 7),
        "padding that is not the pad id": (row, end, 7),
        "1 padding that is not the pad id": (row, S - 1, info.eos_id),
    }
    if manifest.columns["input_ids"] > S:
        extra = "last tokens (slot S) of input_ids that are not the next of their document"
        wrong |= {
            extra: (cut, S, lambda old: old + 1 if old + 1 != info.vocab_size else 4),
            f"1 {extra}": (cut, S, info.pad_id),
            "padding that is not the pad id, the first in": (row, S, 7),
            "vocabulary, the first in": (cut, S, info.vocab_size),
        }
    for told, (r, slot, value) in wrong.items():
        with kept(out):
            edit_rows(out, put("input_ids", r, slot, value))
            defects = verify(out, fast=True).defects
        place = f"the first in row {r}, slot {slot}"
        assert any(told in line and place in line for line in defects), (told, defects)


def test_a_special_id_where_the_tokenizer_is_away(make: Callable[..., Path]) -> None:
    """Then it may have been text, for all we know: a note says what was not looked for."""
    out = make("legacy", True)
    row, _ = padded_row(pieces_of(out))
    manifest = Manifest.load(out)
    edit_rows(out, put("input_ids", row, 3, manifest.tokenizer.pad_id))
    manifest = Manifest.load(out)
    replace(manifest, tokenizer=replace(manifest.tokenizer, path="absent.model")).save(out)
    verdict = verify(out, fast=True)
    assert verdict.defects == []
    assert "nor whether special ids stand inside of documents" in verdict.notes[1]


def test_two_copies_of_a_document_must_agree(config_for: Make, corpus: Path) -> None:
    """A shard holds several copies of each; ids alone would tell nothing of one wrong token."""
    inputs = [Input(str(corpus / "a.jsonl"), weight=7.0)]
    out = built(config_for(inputs=inputs, write=Write(shards=3, columns="legacy")))
    assert verify(out).defects == []
    first: dict[tuple[str, int, int], dict[str, Any]] = {}
    for piece in pieces_of(out):
        other = first.setdefault((piece["file"], piece["source_row"], piece["token_start"]), piece)
        if other is not piece and piece["token_start"] == 0:
            break
    edit_rows(out, put("input_ids", piece["row"], piece["start"], lambda old: old - 1))
    (found,) = verify(out, fast=True).defects
    assert "pieces that differ from the same tokens in another copy of their document" in found


def test_the_first_of_many_defects_is_told(make: Callable[..., Path]) -> None:
    """Over blocks of rows: all are counted, the first is named."""
    out = make("mindformers", True)

    def change(rows: Rows) -> None:
        rows["position_ids"][4:, 1] = 9

    edit_rows(out, change)
    n = next(s.rows for s in Manifest.load(out).splits["train"] if s.path == SHARD) - 4
    told = f"{n} position_ids that do not count their document, the first in row 4, slot 1"
    assert told in verify(out, fast=True).defects[0]


AUDITS: dict[str, tuple[Callable[[Pieces], Any], str]] = {
    "start": (lambda p: p[1].update(start=p[1]["start"] + 1), "do not follow each other: row"),
    "length": (lambda p: p[0].update(length=p[0]["length"] - 1), "of a document do not join"),
    "no length": (lambda p: p[0].update(length=0), "do not follow each other"),
    "beyond the row": (lambda p: p[-1].update(length=99), "do not follow each other"),
    "row": (lambda p: p[-1].update(row=p[-1]["row"] + 1), "do not follow each other"),
    "order": (lambda p: p.reverse(), "do not follow each other"),
    "a row less": (lambda p: p.__delitem__(slice(-1, None)), "is wrong: it ends with row"),
    "nothing": (lambda p: p.clear(), "it is of no shard"),
    "another shard": (lambda p: p[0].update(shard="x"), "not of train-00001-of-00003"),
    "another file": (lambda p: p[0].update(file="/y"), "which the manifest does not know"),
    "another record": (lambda p: p[0].update(source_row=10**9), "names record 1000000000 of"),
    "a record before the first": (lambda p: p[0].update(source_row=-1), "names record -1 of"),
    "a token on": (lambda p: p[0].update(token_start=1), "the pieces of a document do not join"),
    "a token before": (lambda p: p[0].update(token_start=-1), "names a token before"),
}


@pytest.mark.parametrize("case", AUDITS)
def test_a_wrong_audit_under_right_hashes(make: Callable[..., Path], case: str) -> None:
    change, told = AUDITS[case]
    out = make("compact", True)
    edit_audit(out, change)
    verdict = verify(out, fast=True)
    assert any(told in line and AUDIT in line for line in verdict.defects), verdict.defects
    assert verdict.unread == 1


def test_two_documents_swapped_in_the_audit(make: Callable[..., Path]) -> None:
    """A document's second piece is said to be another's: its first token is not the last label."""
    out = make("mindformers", True)

    def swap(pieces: Pieces) -> None:
        again = [p for p in pieces if p["token_start"] == S]
        a, b = next(
            (a, b) for a in again for b in again if a["length"] != b["length"] and a is not b
        )
        for key in ("file", "source_row"):
            a[key], b[key] = b[key], a[key]

    edit_audit(out, swap)
    defects = verify(out, fast=True).defects
    assert any("labels that are not the next token" in line for line in defects), defects


@pytest.mark.parametrize(
    ("preset", "change", "told"),
    [
        ("legacy", {"preset": "mindformers"}, "are not those of its preset 'mindformers'"),
        ("legacy", {"preset": "new"}, "names a preset 'new' that this version does not know"),
        ("compact", {"isolate_documents": False}, "are not those of its preset 'compact'"),
        ("mindformers", {"isolate_documents": False}, "are not those of its preset"),
        ("mindformers", {"seq_length": S - 1}, "are not those of its preset"),
        ("compact", {"columns": {"input_ids": S + 1}}, "column segments has length 16, the man"),
        ("legacy", {"columns": {"input_ids": S}}, "column input_ids has length 65, the manif"),
        ("legacy", {"columns": {}}, "column input_ids has length 65, the manifest says none"),
    ],
)
def test_a_manifest_of_other_columns(
    make: Callable[..., Path], preset: str, change: dict[str, Any], told: str
) -> None:
    out = make(preset, True)
    replace(Manifest.load(out), **change).save(out)
    defects = verify(out, fast=True).defects
    assert any(told in line for line in defects), defects
