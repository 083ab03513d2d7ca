"""What is checked before a shard is opened; folders that are damaged, shut, of many shards."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from training.data import Loader

Numbered = Callable[..., Path]
READERS = ("mindspore", "direct")
ROOT = Path(__file__).resolve().parents[2]

# Prints one line: the rows of an epoch, or what the user is told; then how it went.
PROGRAM = """
import json, os, sys
from itertools import islice
from dataprep.errors import UserError
from training.data import Loader
try:
    with Loader(sys.argv[1], batch_size=2, **json.loads(sys.argv[2])) as loader:
        before = len(os.listdir("/dev/fd"))
        rows = [next(loader)["input_ids"][:, 0].tolist()]
        opened = len(os.listdir("/dev/fd")) - before
        steps = min(loader.epoch.steps, 2500)
        rows += [b["input_ids"][:, 0].tolist() for b in islice(loader, steps)]
    told = None
except UserError as e:
    rows, opened, told = None, 0, str(e)
loaded = "mindspore" in sys.modules
print("RESULT", json.dumps({"rows": rows, "opened": opened, "told": told, "mindspore": loaded}))
"""


def run(
    out_dir: Path, limit: int | None = None, prefix: tuple[str, ...] = (), **options: Any
) -> Any:
    """What PROGRAM says in a process of its own, with at most `limit` open files."""
    command = [*prefix, sys.executable, "-c", PROGRAM, str(out_dir), json.dumps(options)]
    if limit is not None:
        command = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, done.stderr
    return json.loads(lines[0].removeprefix("RESULT "))


def many_shards(out_dir: Path, shards: int, copies: Callable[[Path, Path], object]) -> Path:
    """The folder with its first shard `shards` times. MindRecord wants the name that is inside a
    file, so each copy has a folder of its own.
    """
    manifest = Manifest.load(out_dir)
    first = manifest.splits["train"][0]
    files = []
    for i in range(shards):
        folder = out_dir / "train" / str(i)
        folder.mkdir()
        name = Path(first.path).name
        for suffix in ("", ".db"):
            copies(out_dir / (first.path + suffix), folder / (name + suffix))
        files.append(replace(first, path=f"train/{i}/{name}"))
    replace(manifest, splits={"train": files}).save(out_dir)
    return out_dir


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda p: p.unlink(), "train-00001-of-00002.mindrecord is missing, or was renamed"),
        (lambda p: p.rename(p.with_name("x.mindrecord")), "is missing, or was renamed"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "the manifest says .* cut short, or of"),
        (lambda p: Path(f"{p}.db").unlink(), "mindrecord.db, the index .* is missing; copy the"),
    ],
)
def test_a_missing_or_short_shard_is_told_before_opening(
    numbered: Numbered, reader: Any, damage: Callable[[Path], object], told: str
) -> None:
    out_dir = numbered(6)
    damage(out_dir / "train" / "train-00001-of-00002.mindrecord")
    with pytest.raises(UserError, match=told):
        Loader(out_dir, reader=reader, batch_size=2)


@pytest.mark.parametrize("reader", READERS)
def test_damaged_bytes_are_a_user_error(numbered: Numbered, reader: Any) -> None:
    out_dir = numbered(6)
    shard = out_dir / "train" / "train-00000-of-00002.mindrecord"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    with Loader(out_dir, reader=reader, batch_size=2) as loader:
        for _ in range(2):  # each time, and no quiet end
            with pytest.raises(UserError, match=r"cannot read the shards of|is damaged"):
                next(loader)


@pytest.mark.parametrize("reader", READERS)
def test_two_shards_with_each_others_names(numbered: Numbered, reader: Any) -> None:
    out_dir = numbered(6)
    one, two = sorted((out_dir / "train").glob("*.mindrecord"))
    for suffix in ("", ".db"):
        a, b, c = (Path(f"{p}{suffix}") for p in (one, two, out_dir / "x"))
        a.rename(c), b.rename(a), c.rename(b)
    assert one.stat().st_size == two.stat().st_size
    with (
        Loader(out_dir, reader=reader, batch_size=2) as loader,
        pytest.raises(UserError, match="cannot read the shards of|was renamed: inside it is"),
    ):
        next(loader)


@pytest.mark.parametrize("reader", READERS)
def test_an_audit_that_is_not_the_shards_own(packed: Numbered, reader: Any) -> None:
    out_dir = packed([[1, 2, 3]] * 8, "legacy", 4)
    first, second = sorted((out_dir / "audit" / "rows").iterdir())
    shutil.copy(second, first)
    told = (
        "train-00000-of-00002.parquet, which says where the documents .* cannot be read: its bytes"
    )
    with Loader(out_dir, reader=reader, batch_size=2) as loader:
        with pytest.raises(UserError, match=told):
            next(loader)
        first.unlink()
        with pytest.raises(UserError, match="No such file .* or build it with write.columns: comp"):
            next(loader)


def test_an_audit_without_a_hash_must_still_fit(packed: Numbered) -> None:
    """Manifests of older versions have none."""
    out_dir = packed([[1, 2, 3], [4, 5], [6], [7, 8]], "legacy", 4)
    manifest = Manifest.load(out_dir)
    shards = [replace(shard, audit_sha256="") for shard in manifest.splits["train"]]
    replace(manifest, splits={"train": shards}).save(out_dir)
    audits = sorted((out_dir / "audit" / "rows").iterdir())
    with Loader(out_dir, reader="direct", batch_size=1) as loader:
        assert next(loader)["segments"].tolist() == [[0, 0, 0, 1]]
    shutil.copy(audits[1], audits[0])
    with Loader(out_dir, reader="direct", batch_size=1) as loader:
        assert next(loader)["segments"].tolist() == [[0, 0, 1, 1]]  # it fits: nothing to see
    audits[0].write_bytes(b"PAR1")
    with (
        Loader(out_dir, reader="direct", batch_size=1) as loader,
        pytest.raises(UserError, match="cannot be read: .* copy the whole output folder again"),
    ):
        next(loader)


def test_another_manifest_is_another_data_set(numbered: Numbered) -> None:
    out_dir, other = numbered(6), numbered(6, 1, name="other")
    state = Loader(out_dir, batch_size=2).state()
    shutil.copy(other / "manifest.json", out_dir / "manifest.json")
    with pytest.raises(UserError, match="another data set"):
        Loader(out_dir, batch_size=2).restore(state)


@pytest.mark.parametrize("reader", READERS)
def test_a_path_with_chinese_characters_and_spaces(numbered: Numbered, reader: Any) -> None:
    out_dir = numbered(6, name="数据 集 (1)/输出 文件夹", preset="legacy")
    with Loader(out_dir, reader=reader, batch_size=2, seed=1) as loader:
        rows = [b["input_ids"][:, 0].tolist() for b in islice(loader, 3)]
    assert sorted(sum(rows, [])) == list(range(6))


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_that_cannot_be_written(numbered: Numbered, reader: Any) -> None:
    """By anyone: root loses the right to ignore permissions."""
    prefix: tuple[str, ...] = ()
    if not os.geteuid():
        prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
        if subprocess.run([*prefix, "true"], check=False).returncode:
            pytest.skip("root may write anywhere, and setpriv cannot take that right away here")
    out_dir = numbered(6, preset="legacy")
    paths = [out_dir, *out_dir.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: sha256_file(path) for path in paths if path.is_file()}
    result = run(out_dir, prefix=prefix, reader=reader)
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert result["told"] is None and result["rows"] == [[0, 1], [2, 3], [4, 5]]
    assert {path: sha256_file(path) for path in out_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_the_number_of_open_files_is_known(numbered: Numbered, workers: int) -> None:
    """What is counted is what MindSpore opens, and one file fewer is refused."""
    if workers > (os.cpu_count() or 1):
        pytest.skip("MindSpore allows no more workers than there are cores")
    # More rows than are read ahead: MindSpore closes its files when all are read.
    out_dir = many_shards(numbered(2000), 150, os.link)
    free = run(out_dir, workers=workers)
    assert free["opened"] == 150 * (workers + 1)
    refused = run(out_dir, 64, workers=workers)
    assert not refused["mindspore"]  # told before it is even loaded
    assert refused["told"].startswith(
        f"reading 150 shards with {workers} workers keeps {150 * (workers + 1) + 16} files open, "
        "and this process may open "
    )
    enough = int(refused["told"].split("run `ulimit -n ")[1].split("`")[0])
    assert run(out_dir, enough, workers=workers)["rows"] == free["rows"]
    assert "run `ulimit" in run(out_dir, enough - 1, workers=workers)["told"]


def test_4096_shards_and_1024_open_files(numbered: Numbered) -> None:
    out_dir = many_shards(numbered(2), 4096, os.link)
    refused = run(out_dir, 1024)
    assert refused["rows"] is None and not refused["mindspore"]
    assert refused["told"].startswith("reading 4096 shards with 1 workers keeps 8208 files open")
    assert refused["told"].endswith("or set reader: direct, which keeps none open")
    direct = run(out_dir, 1024, reader="direct", seed=3)
    assert direct["told"] is None and not direct["mindspore"]
    assert direct["opened"] == 0
    assert sum(direct["rows"], []) == [0] * 4096
