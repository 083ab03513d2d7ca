"""Local files that stand for remote ones."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.storage import Remote, fetched, find, read, scratch, scratch_folder, staged
from tests.object_store import Bucket, Faulty


@pytest.fixture(autouse=True)
def tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(scratch, "_held", [])
    scratch._root.cache_clear()
    yield folder
    for lock in scratch._held:
        lock.close()
    scratch._root.cache_clear()


def make_old(path: Path) -> None:
    os.utime(path, (1e9, 1e9), follow_symlinks=False)


def left(tmpdir: Path) -> list[str]:
    """Files below TMPDIR, but for the locks."""
    return [path.name for path in tmpdir.rglob("*") if path.is_file() and path.name != scratch.LOCK]


def test_a_folder_is_removed_at_the_end(tmpdir: Path) -> None:
    with scratch_folder() as a, scratch_folder() as b:
        assert a != b and a.is_relative_to(tmpdir) and list(a.iterdir()) == []
        (a / "deep").mkdir()
        (a / "deep/file").touch()
    with pytest.raises(ZeroDivisionError), scratch_folder() as c:
        (c / "file").touch()
        raise ZeroDivisionError
    assert not a.exists() and not b.exists() and not c.exists()
    assert len(list(tmpdir.iterdir())) == 1  # one folder for the process


def test_a_local_folder_is_its_own_stage(tmp_path: Path, tmpdir: Path) -> None:
    with staged(tmp_path) as folder:
        assert folder == tmp_path
    assert list(tmpdir.iterdir()) == []


def test_what_is_staged_is_uploaded_at_the_end(root: Remote, tmpdir: Path) -> None:
    with staged(root / "out") as folder:
        (folder / "sub").mkdir()
        (folder / "a").write_bytes(b"a")
        (folder / "sub/b").write_bytes(b"b")
        assert find(root) == {}
    assert list(find(root)) == [root / "out/a", root / "out/sub/b"]
    assert read(root / "out/sub/b") == b"b"
    assert not folder.exists() and left(tmpdir) == []


def test_nothing_is_uploaded_after_an_exception(root: Remote, tmpdir: Path) -> None:
    with pytest.raises(ZeroDivisionError), staged(root) as folder:
        (folder / "a").touch()
        raise ZeroDivisionError
    assert find(root) == {} and left(tmpdir) == []


def test_an_index_is_there_before_its_shard(s3: Bucket, faulty: Faulty) -> None:
    with staged(s3.at / "train") as folder:
        for name in ("0.mindrecord", "0.mindrecord.db", "1.mindrecord", "1.mindrecord.db"):
            (folder / name).touch()
    assert [path.split("/train/")[1] for method, path in faulty.seen if method == "PUT"] == [
        *("1.mindrecord.db", "1.mindrecord", "0.mindrecord.db", "0.mindrecord"),
    ]


def test_fetched_gives_local_files(s3: Bucket, tmp_path: Path, tmpdir: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"local")
    hostile = s3.put("../../etc/passwd", b"remote")
    with fetched([local, hostile, hostile]) as (first, second, third):
        assert first == local
        assert second != third and second.is_relative_to(tmpdir)
        assert second.read_bytes() == third.read_bytes() == b"remote"
    assert local.exists() and not second.exists() and left(tmpdir) == []


def other_process() -> tuple[subprocess.Popen[str], Path]:
    """A process within its scratch folder, and that folder's parent, made long ago."""
    code = (
        "import sys; from dataprep.storage import scratch_folder\n"
        "with scratch_folder() as folder: print(folder, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    folder = Path(process.stdout.readline().strip())
    (folder / "half").touch()
    make_old(folder.parent)
    return process, folder.parent


def test_the_dead_are_tidied_up_after_and_the_living_are_not(tmpdir: Path) -> None:
    (killed, old), (alive, used) = other_process(), other_process()
    with killed, alive:
        killed.kill()
        killed.wait()
        assert {old, used} == set(tmpdir.iterdir())
        with scratch_folder() as mine:
            assert set(tmpdir.iterdir()) == {used, mine.parent}
        assert left(tmpdir) == ["half"]
        alive.communicate()
    assert left(tmpdir) == []


def test_what_may_not_be_swept(tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    young, link, file = (tmpdir / f"{scratch.PREFIX}{name}" for name in ("young", "link", "file"))
    young.mkdir()  # it may not have its lock yet
    (tmpdir / "linked").mkdir()
    link.symlink_to(tmpdir / "linked")
    file.touch()
    for path in (tmpdir / "linked", link, file):
        make_old(path)
    there = set(tmpdir.iterdir())
    scratch._sweep()
    assert set(tmpdir.iterdir()) == there
    make_old(young)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: -1)
        scratch._sweep()  # of somebody else
        assert set(tmpdir.iterdir()) == there
    scratch._sweep()  # its process died before it had a lock
    assert set(tmpdir.iterdir()) == there - {young}
