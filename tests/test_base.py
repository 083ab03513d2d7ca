"""Base modules: errors, atomic files, ledger, manifest."""

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dataprep import Ledger, Manifest, UserError
from dataprep.files import atomic_path, fingerprint, read_json, sha256_file, write_json
from dataprep.ledger import TaskLedger
from dataprep.manifest import Shard, TokenizerInfo
from dataprep.sums import change_sum, read_sums, write_sums


def test_an_error_is_one_line_and_pickles() -> None:
    error = UserError("a\nb\x1b[31m\u202e")
    assert str(error) == "a\\nb\\x1b[31m\\u202e"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x"
    with atomic_path(path) as tmp:
        tmp.write_text("old")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), atomic_path(path) as tmp:
        tmp.write_text("half")
        raise ZeroDivisionError
    with (
        pytest.raises(UserError, match="cannot write .*x: No space left"),
        atomic_path(path) as tmp,
    ):
        tmp.write_text("half")
        raise OSError(28, "No space left on device")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["x"]


def test_json_and_hashes(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"b": 1, "a": "中"})
    assert read_json(tmp_path / "x.json") == {"a": "中", "b": 1}
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1})
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x").startswith("ba7816bf")
    (tmp_path / "bad.json").write_text("{")
    for name in ("bad.json", "absent.json"):
        with pytest.raises(UserError, match=name):
            read_json(tmp_path / name)


def test_a_ledger_balances_or_says_where_not() -> None:
    ledger = Ledger()
    ledger.count("web", "documents.read", 10)
    ledger.count("zh", "documents.kept", 7)
    ledger.count("zh", "documents.removed.clean.empty", 2)
    assert ledger.imbalances() == [
        "documents.read = 10 but documents.kept + documents.removed. = 9"
    ]
    ledger.count("web", "documents.removed.dedup.exact", 1)
    assert ledger.imbalances() == []
    assert ledger.below("documents.removed.") == {"clean.empty": 2, "dedup.exact": 1}
    assert Ledger.from_json(ledger.to_json()).counts == ledger.counts
    assert Ledger().add([ledger, ledger]).total("documents.read") == 20


def test_a_later_task_counts_under_another_name() -> None:
    early, late = Ledger(), Ledger()
    early.count("zh", "documents.kept", 7)
    late.move("zh", "documents.kept", "documents.removed.mix.max_tokens", 7)
    assert Ledger().add([early, late]).to_json() == {"zh": {"documents.removed.mix.max_tokens": 7}}


def test_a_prefix_is_not_a_name() -> None:
    ledger = Ledger()
    ledger.count("", "documents.removed_by_hand", 3)
    assert ledger.total("documents.removed.") == 0


def test_removals_are_counted_and_recorded() -> None:
    ledger = TaskLedger("web")
    ledger.remove([0, 1], [5, 6], "clean", "empty", [0.0, 0.0], 1)
    ledger.remove(2, [7], "read", "invalid_json")
    ledger.remove(2, [], "read", "never")
    rows = [row for batch in ledger.removed for row in batch.to_pylist()]
    assert [(r["split"], r["row"], r["rule"]) for r in rows] == [
        (0, 5, "empty"),
        (1, 6, "empty"),
        (2, 7, "invalid_json"),
    ]
    assert rows[0]["threshold"] == 1 and np.isnan(rows[2]["value"])
    assert ledger.ledger.below("documents.removed.") == {"clean.empty": 2, "read.invalid_json": 1}


@pytest.fixture
def manifest() -> Manifest:
    shard = Shard("train/train-00000-of-00001.mindrecord", 5, 40, 1000, "a" * 64, "b" * 64)
    info = TokenizerInfo("tok.model", "sentencepiece", "c" * 64, 100, 2, 3, 1)
    return Manifest(8, "mindformers", {"input_ids": 8}, True, info, {"train": [shard]})


def test_a_manifest_names_its_shards(manifest: Manifest, tmp_path: Path) -> None:
    manifest.save(tmp_path)
    again = Manifest.load(tmp_path)
    assert again == manifest and again.fingerprint == manifest.fingerprint
    assert again.rows("train") == 5 and again.rows("eval") == 0
    assert again.files(tmp_path, "train") == [
        str(tmp_path / "train/train-00000-of-00001.mindrecord")
    ]
    with pytest.raises(UserError, match="no split 'eval'; it has: train"):
        again.files(tmp_path, "eval")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"rows": 5', '"rows": 6', "was changed after"),
        ('"format": 1', '"format": 9', "format 9"),
        ('"splits"', '"shards"', "damaged"),
        ("{", "", "not valid JSON"),
    ],
)
def test_a_damaged_manifest(
    manifest: Manifest, tmp_path: Path, old: str, new: str, told: str
) -> None:
    manifest.save(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=told):
        Manifest.load(tmp_path)


def test_sums_by_eye_and_by_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "a b.parquet").write_bytes(b"x")
    (tmp_path / "run.json").write_bytes(b"")
    x = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    write_sums(tmp_path, {"run.json": empty, "audit/a b.parquet": x})
    text = (tmp_path / "SHA256SUMS").read_text()
    assert text == f"{x}  audit/a b.parquet\n{empty}  run.json\n"
    assert read_sums(tmp_path) == {"audit/a b.parquet": x, "run.json": empty}
    check = ["sha256sum", "--strict", "--check", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    change_sum(tmp_path, "run.json", x)
    assert read_sums(tmp_path)["run.json"] == x


@pytest.mark.parametrize("text", ["", "0  a\n", f"{'0' * 64} a\n", f"{'0' * 64}  a\n" * 2])
def test_damaged_sums(tmp_path: Path, text: str) -> None:
    (tmp_path / "SHA256SUMS").write_text(text)
    with pytest.raises(UserError, match="SHA256SUMS is damaged: line"):
        read_sums(tmp_path)


def test_a_folder_without_sums(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SHA256SUMS is missing"):
        read_sums(tmp_path)
    change_sum(tmp_path, "report.html", "0" * 64)
    assert not (tmp_path / "SHA256SUMS").exists()
