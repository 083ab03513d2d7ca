"""verify --repair: what can be mended without a build, and nothing else."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep.corpus import BuildConfig, Write
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.verify import verify
from pipelines.cli import main
from tests.corpus.resealed import AUDIT, SHARD, built, files, reseal

Make = Callable[..., BuildConfig]
INDEX = f"{SHARD}.db"


@pytest.fixture(params=["mindformers", "compact"])
def one(config_for: Make, request: pytest.FixtureRequest) -> Path:
    return built(config_for(write=Write(shards=3, columns=request.param)))


def contents(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files(out)}


def remove_index(out: Path) -> None:
    (out / INDEX).unlink()


def damage_index(out: Path) -> None:
    data = bytearray((out / INDEX).read_bytes())
    data[len(data) // 2] ^= 4
    (out / INDEX).write_bytes(data)


def stale_index(out: Path) -> None:
    """Of another shard."""
    shutil.copy(out / "train/train-00000-of-00003.mindrecord.db", out / INDEX)


def rename_shard(out: Path) -> None:
    (out / SHARD).rename(out / "train/part-1.mindrecord")
    (out / INDEX).rename(out / "train/part-1.mindrecord.db")


def rename_shard_alone(out: Path) -> None:
    """And its index, made for the new name by somebody, is not ours."""
    (out / SHARD).rename(out / "train/part-1.mindrecord")


def move_files(out: Path) -> None:
    (out / "old").mkdir()
    for name in (SHARD, INDEX, AUDIT, "run.json"):
        (out / name).rename(out / "old" / Path(name).name)
    shutil.move(out / "eval", out / "old/eval")


def swap_names(out: Path) -> None:
    """Two shards renamed in a circle would need hashes of all: by way of a third name."""
    other = out / "train/train-00000-of-00003.mindrecord"
    other.rename(out / "train/a")
    (out / SHARD).rename(out / "train/b")


def remove_yaml(out: Path) -> None:
    (out / "mindformers.yaml").unlink()


@pytest.mark.parametrize(
    ("damage", "repaired"),
    [
        (remove_index, 1),
        (damage_index, 1),
        (stale_index, 1),
        (rename_shard, 2),
        (rename_shard_alone, 1),
        (move_files, 6),
        (swap_names, 2),
        (remove_yaml, 1),
    ],
)
def test_every_byte_is_as_before(
    one: Path, damage: Callable[[Path], None], repaired: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(one)
    damage(one)
    changed = contents(one)
    assert changed != before and main(["verify", str(one), "--fast"]) == 1
    assert "DEFECT: " in capsys.readouterr().out
    assert contents(one) == changed  # without --repair nothing is touched
    assert main(["verify", str(one), "--repair"]) == 0
    told = capsys.readouterr().out
    assert told.count("repaired: ") == repaired and "verified" in told
    assert contents(one) == before
    assert main(["verify", str(one), "--repair"]) == 0
    assert "repaired: " not in capsys.readouterr().out


@pytest.mark.parametrize("damage", [remove_index, stale_index, damage_index, remove_yaml])
def test_the_message_names_the_cure(one: Path, damage: Callable[[Path], None]) -> None:
    damage(one)
    (found,) = verify(one, fast=True).defects
    assert found.endswith("--repair cures it")
    if damage is not remove_yaml:
        assert "MindSpore" in found and INDEX in found


def test_a_moved_folder(config_for: Make, tmp_path: Path) -> None:
    """mindformers.yaml is written for where the folder lies now, and its hash noted."""
    one = built(config_for())
    moved = tmp_path / "数据 集"
    shutil.move(one, moved)
    assert "--repair cures it" in verify(moved, fast=True).notes[1]
    verdict = verify(moved, fast=True, repair=True)
    assert verdict.repaired == [f"{moved / 'mindformers.yaml'}: written again, it was moved"]
    assert (verdict.defects, len(verdict.notes)) == ([], 1)
    assert str(moved / "train") in (moved / "mindformers.yaml").read_text("utf-8")
    check = ["sha256sum", "--strict", "--quiet", "--check", "SHA256SUMS"]
    subprocess.run(check, cwd=moved, check=True)


def test_a_repair_killed_before_it_noted_the_hash(
    config_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "moved"
    shutil.move(built(config_for()), moved)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("dataprep.verify.repair.change_sum", killed)
        verify(moved, fast=True, repair=True)
    assert verify(moved, fast=True).defects != []
    verdict = verify(moved, fast=True, repair=True)
    assert (len(verdict.repaired), verdict.defects) == (1, [])


def test_what_cannot_be_mended_is_left(one: Path) -> None:
    """A damaged data file, its index lost: none is made for it."""
    data = bytearray((one / SHARD).read_bytes())
    data[-5] ^= 1
    (one / SHARD).write_bytes(data)
    (one / INDEX).unlink()
    (one / "stranger").write_bytes(b"x")
    (one / "SHA256SUMS").write_bytes(b"x")
    (one / "mindformers.yaml").unlink()  # its hash could not be noted
    before = contents(one)
    verdict = verify(one, fast=True, repair=True)
    assert verdict.repaired == [] and contents(one) == before
    told = "\n".join(verdict.defects)
    assert f"{SHARD} has changed bytes" in told and f"{INDEX} is missing" in told
    assert "SHA256SUMS is damaged" in told and "stranger is not in" in told


def test_an_index_that_no_data_file_makes(one: Path) -> None:
    """A manifest with another hash of the index: a defect, and the index is not replaced."""
    before = (one / INDEX).read_bytes()
    reseal(one, index_sha256="0" * 64)
    verdict = verify(one, fast=True, repair=True)
    assert "made from its data file it has another SHA-256" in verdict.defects[0]
    assert (one / INDEX).read_bytes() == before and verdict.repaired == []


def test_an_edited_yaml_is_not_overwritten(one: Path) -> None:
    path = one / "mindformers.yaml"
    path.write_text(path.read_text("utf-8") + "# mine\n", "utf-8")
    verdict = verify(one, fast=True, repair=True)
    assert verdict.repaired == [] and "has changed bytes" in verdict.defects[0]
    assert path.read_text("utf-8").endswith("# mine\n")


def test_a_copy_is_no_renamed_shard(one: Path) -> None:
    """The shard is there, so a second one under another name stays a stranger."""
    shutil.copy(one / SHARD, one / "train/copy.mindrecord")
    verdict = verify(one, fast=True, repair=True)
    assert verdict.repaired == [] and "copy.mindrecord is not in" in verdict.defects[0]


@pytest.mark.parametrize("damage", [remove_index, rename_shard, remove_yaml])
def test_a_read_only_folder(config_for: Make, damage: Callable[[Path], None]) -> None:
    one = built(config_for())
    damage(one)
    prefix: list[str] = []
    if not os.geteuid():  # root loses the right to ignore permissions
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
        if not shutil.which("setpriv") or subprocess.run([*prefix, "true"]).returncode:
            pytest.skip("root may write anywhere, and setpriv cannot take that right away here")
    for folder in (one, one / "train"):
        folder.chmod(0o555)
    before = contents(one)
    command = [*prefix, sys.executable, "-m", "pipelines.verify", str(one), "--fast", "--repair"]
    done = subprocess.run(command, capture_output=True, text=True)
    for folder in (one, one / "train"):
        folder.chmod(0o755)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith(f"error: cannot write {one}/"), done.stderr
    assert "Permission denied; choose a folder that can be written" in done.stderr
    assert contents(one) == before


def test_repair_then_proof_by_hashes(one: Path) -> None:
    """The index made again has the manifest's hash, not just the right content."""
    remove_index(one)
    verify(one, fast=True, repair=True)
    shard = next(s for s in Manifest.load(one).splits["train"] if s.path == SHARD)
    assert sha256_file(one / INDEX) == shard.index_sha256
