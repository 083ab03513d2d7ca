"""Invariant 9: verify accepts what was built and names every defect."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.corpus import BuildConfig, build
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.mindrecord import ShardReader, ShardWriter, fit_layout
from dataprep.pack import Pack
from dataprep.verify import verify
from pipelines.cli import main

Make = Callable[..., BuildConfig]
SHARD = "train/train-00001-of-00003.mindrecord"


@pytest.fixture(params=["best_fit", "concat", "shared rows"])
def out(config_for: Make, request: pytest.FixtureRequest) -> Path:
    pack = {
        "best_fit": Pack(seq_length=64, max_documents=16),
        "concat": Pack(seq_length=48, strategy="concat", max_documents=4),
        "shared rows": Pack(seq_length=64, strategy="concat", isolate_documents=False),
    }[request.param]
    return build(config_for(pack=pack)).out_dir


@pytest.fixture
def one(config_for: Make) -> Path:
    return build(config_for()).out_dir


def defects(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints; it must end with 1."""
    assert main(["verify", str(out)]) == 1
    return capsys.readouterr().out


def test_a_build_verifies(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(out)]) == 0
    assert "verified" in capsys.readouterr().out


def test_a_moved_folder_verifies(one: Path, tmp_path: Path) -> None:
    """Also under a path with Chinese characters and spaces."""
    moved = tmp_path / "数据 集"
    shutil.move(one, moved)
    assert verify(moved).defects == []


@pytest.mark.parametrize("where", [0.0, 0.001, 0.3, 0.6, 0.9, 0.999999])
@pytest.mark.parametrize("ending", ["", ".db"])
def test_one_flipped_byte_is_found(
    one: Path, where: float, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = one / (SHARD + ending)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 0x10
    path.write_bytes(data)
    assert f"{path} has changed bytes" in defects(one, capsys)


def test_a_missing_index(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one / (SHARD + ".db")).unlink()
    assert f"{SHARD}.db is missing" in defects(one, capsys)


def test_a_missing_shard(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one / SHARD).unlink()
    assert f"{SHARD} is missing" in defects(one, capsys)


def test_a_renamed_shard(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one / SHARD).rename(one / "train" / "renamed.mindrecord")
    (one / (SHARD + ".db")).rename(one / "train" / "renamed.mindrecord.db")
    told = defects(one, capsys)
    assert f"{SHARD} is missing (renamed or deleted)" in told
    assert "renamed.mindrecord is not in the manifest" in told


@pytest.mark.parametrize("cut", [1, 1000])
def test_a_truncated_shard(one: Path, cut: int, capsys: pytest.CaptureFixture[str]) -> None:
    data = (one / SHARD).read_bytes()
    (one / SHARD).write_bytes(data[:-cut])
    assert f"{SHARD} has {len(data) - cut:,} bytes" in defects(one, capsys)


def test_every_defect_is_told(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one / "train/train-00000-of-00003.mindrecord.db").unlink()
    (one / SHARD).write_bytes((one / SHARD).read_bytes()[:-1])
    (one / "eval/stranger.mindrecord").touch()
    told = defects(one, capsys)
    assert told.count("DEFECT") >= 3 and "stranger" in told


def test_an_edited_manifest(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = one / "manifest.json"
    path.write_text(path.read_text().replace('"rows": ', '"rows": 1'))
    assert main(["verify", str(one)]) == 2
    assert "was changed after it was written" in capsys.readouterr().err


def rewrite(out: Path, column: str, row: int, slot: int, value: int) -> None:
    """Writes a shard anew with one number changed, and a manifest that believes it."""
    path = out / SHARD
    manifest = Manifest.load(out)
    with ShardReader(path) as reader:
        rows = reader.read(0, len(reader))
    rows[column][row, slot] = value
    with ShardWriter(path, manifest.columns, fit_layout(manifest.columns, 1000)) as writer:
        writer.write(rows)
    shards = [
        replace(s, bytes=writer.bytes, sha256=writer.sha256, index_sha256=writer.index_sha256)
        if s.path == SHARD
        else s
        for s in manifest.splits["train"]
    ]
    replace(manifest, splits={**manifest.splits, "train": shards}).save(out)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("input_ids", 600, "1 input_ids outside of the vocabulary, the first in row 2, slot 5"),
        ("input_ids", -1, "input_ids outside of the vocabulary"),
        ("labels", 7, "1 labels that are not the next token, the first in row 2, slot 5"),
        ("labels", -100, "labels that are not the next token"),
        ("loss_mask", 0, "loss_mask that contradicts labels, the first in row 2, slot 5"),
        ("position_ids", 60, "position_ids that do not count their document"),
        ("actual_seq_len", 3, "actual_seq_len that are not the ends of the documents"),
    ],
)
def test_wrong_content_under_right_hashes(
    one: Path, column: str, value: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(one, column, 2, 5, value)
    assert told in defects(one, capsys)


def test_a_removed_document_without_explanation(
    one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((one / "audit/removed").glob("*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.filter(pa.array(np.arange(len(table)) > 0)), path)
    assert "explains 0 documents of 1 removed by read.invalid_json" in defects(one, capsys)


def test_another_tokenizer(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Manifest.load(one)
    path = Path(manifest.tokenizer.path)
    original = path.read_bytes()
    try:
        path.write_bytes(original + b"\0")
        assert sha256_file(path) != manifest.tokenizer.sha256
        assert "is not the one that made the ids" in defects(one, capsys)
    finally:
        path.write_bytes(original)


def test_two_swapped_shards(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MindSpore crashes on a data file that does not match its index: it must not be asked."""
    a, b = one / "train/train-00000-of-00003.mindrecord", one / SHARD
    data = a.read_bytes(), b.read_bytes()
    a.write_bytes(data[1])
    b.write_bytes(data[0])
    assert defects(one, capsys).count("DEFECT") >= 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"documents.kept": ', '"documents.kept": 1'),
        ('"isolate_documents": true', '"isolate_documents": "yes"'),
        ('"eos_id": 2', '"eos_id": 1'),
        ('"ledger": {', '"ledger": 5, "x": {'),
        ('"inputs": [', '"inputs": 5, "x": ['),
        ('"versions": {', '"versions": {}, "x": {'),
    ],
)
@pytest.mark.parametrize("command", ["verify", "report", "inspect"])
def test_any_edit_of_the_manifest(
    one: Path, old: str, new: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = one / "manifest.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert main([command, str(one)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_ledger_that_the_shards_contradict(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Edited by somebody who also renewed the checksum."""
    manifest = Manifest.load(one)
    ledger = {k: dict(v) for k, v in manifest.ledger.items()}
    ledger["web"]["documents.read"] += 1000
    ledger["web"]["documents.kept"] += 1000
    ledger["web"]["documents.removed.dedup.exact"] -= 1
    ledger["web"]["documents.removed.dedup.minhash"] += 1
    replace(manifest, ledger=ledger).save(one)
    told = defects(one, capsys)
    assert "documents.kept is 1,123, the shards hold 123" in told
    assert "explains 20 documents of 19 removed by dedup.exact" in told


@pytest.mark.parametrize(
    "path", ["audit/rows/train-00001-of-00003.parquet", "audit/removed/x.parquet"]
)
def test_a_damaged_audit(one: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (one / path).write_bytes(b"PAR1 no")
    assert "cannot be read" in defects(one, capsys)
    row = ["inspect", str(one), "--shard", "1"] if "rows" in path else []
    for command in (row, ["trace", str(one), "--doc", "a.jsonl:70"]):
        if command:
            assert main(command) == 2
            assert capsys.readouterr().err.count("\n") == 1


def test_an_eval_folder_out_of_nowhere(
    config_for: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataprep.corpus import Eval

    out = build(config_for(eval=Eval(fraction=0))).out_dir
    (out / "eval").mkdir()
    (out / "eval/eval-00000-of-00001.mindrecord").write_bytes(b"x")
    assert "is not in the manifest" in defects(out, capsys)


def test_no_output_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "absent")]) == 2
    assert main(["verify", str(tmp_path)]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
