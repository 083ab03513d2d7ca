"""Invariant 9: verify accepts what was built and names every defect."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.corpus import BuildConfig, build
from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.pack import Pack
from dataprep.sums import change_sum
from dataprep.verify import Verdict, verify
from pipelines.cli import main
from tests.corpus.resealed import AUDIT, SHARD, Rows, built, edit_rows, files, kept, reseal

Make = Callable[..., BuildConfig]


@pytest.fixture(params=["best_fit", "concat", "shared rows"])
def out(config_for: Make, request: pytest.FixtureRequest) -> Path:
    pack = {
        "best_fit": Pack(seq_length=64, max_documents=16),
        "concat": Pack(seq_length=48, strategy="concat", max_documents=4),
        "shared rows": Pack(seq_length=64, strategy="concat", isolate_documents=False),
    }[request.param]
    return built(config_for(pack=pack))


@pytest.fixture
def one(config_for: Make) -> Path:
    return built(config_for())


def defects(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints; it must end with 1."""
    assert main(["verify", str(out)]) == 1
    return capsys.readouterr().out


def test_a_build_verifies(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(out)]) == 0
    told = capsys.readouterr()
    assert "4 shards, " in told.out and told.out.count("\n") == 1
    assert ", read by MindSpore " in told.out and told.out.endswith(": verified\n")
    assert told.err.startswith("verify: done in ")


def test_a_moved_folder_verifies(one: Path, tmp_path: Path) -> None:
    """Also under a path with Chinese characters and spaces."""
    moved = tmp_path / "数据 集"
    shutil.move(one, moved)
    verdict = verify(moved)
    assert verdict.defects == []
    assert f"names the folder {one}, where this one was built" in verdict.notes[0]


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


def told_of(out: Path) -> Verdict:
    """What verify finds; a manifest that cannot be loaded is a defect as well."""
    try:
        return verify(out, fast=True)
    except UserError as e:
        return Verdict(defects=[str(e)])


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        *(
            pytest.param(partial(flip, rng=random.Random(seed)), id=f"flip {seed}")
            for seed in (1, 2, 3)
        ),
        pytest.param(Path.unlink, id="deleted"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"\n"), id="a byte more"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-1]), id="a byte less"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
    ],
)
def test_every_file_is_proved(one: Path, change: Callable[[Path], object]) -> None:
    """All of them, manifest, list of hashes, report and mindformers.yaml too."""
    names = [path.relative_to(one).as_posix() for path in files(one)]
    assert len(names) > 15 and {"SHA256SUMS", "run.json", "mindformers.yaml"} < set(names)
    for name in names:
        with kept(one):
            change(one / name)
            found = told_of(one).defects
        assert any(name in line for line in found), (name, found)
    assert told_of(one).defects == []


@pytest.mark.parametrize(
    "name",
    ["x", "train/x.mindrecord0", "audit/removed/x", "audit/x/y.parquet", "new/x", ".hidden"],
)
def test_a_stranger_anywhere(one: Path, name: str) -> None:
    (one / name).parent.mkdir(exist_ok=True)
    (one / name).write_bytes(b"")
    (found,) = verify(one, fast=True).defects
    assert found == f"{one / name} is not in the manifest: renamed, or left by another run"


def test_a_stranger_among_the_shards_that_the_list_names(one: Path) -> None:
    """MindFormers would load it: it walks the folder. The list of hashes is no leave for it."""
    (one / "train/x.mindrecord").write_bytes(b"x")
    change_sum(one, "train/x.mindrecord", sha256_file(one / "train/x.mindrecord"))
    (found,) = verify(one, fast=True).defects
    assert "x.mindrecord is not in the manifest" in found


def test_names_that_leave_the_folder(one: Path) -> None:
    change_sum(one, "../../etc/passwd", "0" * 64)
    assert "'../../etc/passwd', outside of the folder" in verify(one, fast=True).defects[0]
    reseal_path = replace(Manifest.load(one).splits["train"][0], path="../x.mindrecord")
    replace(Manifest.load(one), splits={"train": [reseal_path]}).save(one)
    with pytest.raises(UserError, match="outside of the folder"):
        verify(one, fast=True, repair=True)


def test_a_link_to_a_folder(one: Path, tmp_path: Path) -> None:
    """Shards on another disk are looked at like others; a link to anything else is a stranger."""
    (one / "train").rename(tmp_path / "elsewhere")
    (one / "train").symlink_to(tmp_path / "elsewhere")
    (one / "loop").symlink_to(one)
    (tmp_path / "elsewhere/x").touch()
    found = verify(one, fast=True).defects
    assert [line.split(" is not in")[0] for line in found] == [f"{one}/loop", f"{one}/train/x"]


def test_an_unfinished_file(one: Path) -> None:
    (one / "report.html.1234abcd.tmp").touch()
    assert "is unfinished, of a command that was killed" in verify(one, fast=True).defects[0]


def test_a_folder_of_an_earlier_version(one: Path) -> None:
    """Without a list of hashes, and without those of the audit: notes, no defects."""
    manifest = Manifest.load(one)
    splits = {k: [replace(s, audit_sha256="") for s in v] for k, v in manifest.splits.items()}
    replace(manifest, splits=splits, versions={"mindprep": "0.1"}).save(one)
    (one / "SHA256SUMS").unlink()
    (one / "mindformers.yaml").write_text("of another form")
    verdict = verify(one, fast=True)
    assert verdict.defects == []
    assert "a version that hashed only the shards" in verdict.notes[1]
    assert "mindformers.yaml is not as mindprep" in verdict.notes[2]
    (one / "audit/removed/y").touch()
    assert "y is not in the manifest" in verify(one, fast=True).defects[0]


def test_mindformers_yaml_edited_by_hand(one: Path) -> None:
    path = one / "mindformers.yaml"
    path.write_text(path.read_text().replace("batch_size: 1", "batch_size: 8"))
    (found,) = verify(one, fast=True).defects
    assert "mindformers.yaml has changed bytes" in found and "copy it elsewhere" in found
    change_sum(one, path.name, sha256_file(path))  # by somebody who means it
    verdict = verify(one, fast=True)
    assert verdict.defects == [] and "mindformers.yaml is not as mindprep" in verdict.notes[1]


def test_a_build_without_its_last_steps(config_for: Make) -> None:
    """The library alone writes no report and no mindformers.yaml: a note."""
    verdict = verify(build(config_for()).out_dir, fast=True)
    assert verdict.defects == [] and "mindformers.yaml is missing" in verdict.notes[1]


def test_fast_needs_no_mindspore(one: Path) -> None:
    program = (
        "import sys; sys.modules['mindspore'] = None\n"
        "from pipelines.cli import main\n"
        f"assert main(['verify', {str(one)!r}, '--fast']) == 0\n"
        f"sys.exit(main(['verify', {str(one)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and "own reader: verified, with 1 note" in done.stdout
    assert "add --fast to read with mindprep's own reader" in done.stderr


def test_progress_and_figures(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataprep.verify.rows.BLOCK_BYTES", 10 * 4 * 5 * 64)  # some rows a block
    steps: list[tuple[int, int]] = []
    verdict = verify(one, progress=lambda done, total: steps.append((done, total)))
    shards = [s for split in Manifest.load(one).splits.values() for s in split]
    size = sum(s.bytes for s in shards)
    done = [done for done, _ in steps]
    assert {total for _, total in steps} == {size} and done == sorted(done) and done[-1] == size
    assert len(steps) > 4 * len(shards)
    assert (verdict.bytes, verdict.rows) == (size, sum(s.rows for s in shards))
    assert verdict.tokens == sum(s.tokens for s in shards) and verdict.shards == 4
    assert verdict.defects == []


def test_small_blocks_find_what_large_ones_find(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that goes on in another block, before or after."""

    def change(rows: Rows) -> None:
        rows["labels"][rows["labels"][:, -1] >= 0, -1] ^= 1

    edit_rows(one, change)
    whole = verify(one, fast=True).defects
    assert len(whole) == 1 and int(whole[0].split(": ")[1].split()[0]) > 3
    monkeypatch.setattr("dataprep.verify.rows.BLOCK_BYTES", 1)  # a row a block
    assert verify(one, fast=True).defects == verify(one).defects == whole


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


def test_wrong_content_by_mindspore(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong label under right hashes; test_verify_columns.py has all columns and presets."""

    def change(rows: Rows) -> None:
        rows["labels"][2, 5] = 7

    edit_rows(one, change)
    told = defects(one, capsys)
    assert "1 labels that are not the next token, the first in row 2, slot 5" in told
    assert "1 defect\n" in told


def test_a_removed_document_without_explanation(
    one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((one / "audit/removed").glob("*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.filter(pa.array(np.arange(len(table)) > 0)), path)
    change_sum(one, path.relative_to(one).as_posix(), sha256_file(path))
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


@pytest.mark.parametrize("path", [AUDIT, "audit/removed/x.parquet"])
def test_a_damaged_audit(one: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Under right hashes; without, it is not read at all."""
    (one / path).write_bytes(b"PAR1 no")
    change_sum(one, path, sha256_file(one / path))
    reseal(one, audit_sha256=sha256_file(one / AUDIT))
    assert f"{path} cannot be read" in defects(one, capsys)
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
