"""What is done to places, in a store of objects and in memory."""

import io
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep import UserError
from dataprep.storage import (
    Entry,
    Place,
    Remote,
    copy,
    download,
    entry,
    find,
    is_folder,
    match,
    open_reader,
    read,
    remove,
    remove_many,
    store,
    upload,
)
from tests.object_store import PAGE, Bucket, Faulty

Put = Callable[[str, bytes], Remote]
MIB = 1 << 20
NAMES = (
    *("a", "b", "x", "a1", "a b", "a  b", "a%20b", "a%2520b", "a+b", "100%", "a#b", "a?b"),
    *("a&b=c;d", "a[1]", "*", "天地.jsonl", "..", "../../x", "a/../b", "a/b", "a//b", "./a", "/a"),
    *("x::file", "x::y", "s3://b/x", "b/x", "a\tb", "\u202e", " a", "a ", "a\\b", "~"),
)


def noise(size: int) -> bytes:
    """Bytes that repeat nowhere."""
    return random.Random(size).randbytes(size)


def names(found: dict[Place, Entry], root: Remote) -> list[str]:
    return [at.relative_to(root) for at in found if isinstance(at, Remote)]


def test_what_is_written_is_read(root: Remote, put: Put, tmp_path: Path) -> None:
    for data in (b"", b"x", noise(100_000)):
        at = put("folder/file", data)  # the second time over what is there
        assert read(at) == data
        download(at, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == data
        with open_reader(at) as f:
            assert f.read() == data
        found = entry(at)
        assert found and found.size == len(data)


@pytest.mark.parametrize("block", [10, 5000])
def test_no_range_is_larger_than_a_block(
    root: Remote, put: Put, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """However much is asked for at once: what breaks off is asked for again, and no more."""
    monkeypatch.setattr(store, "BLOCK", 1000)
    data = noise(10_500)
    at = put("file", data)
    asked = []
    real = store.read_range

    def counted(at: Remote, start: int, stop: int) -> bytes:
        asked.append(stop - start)
        return real(at, start, stop)

    monkeypatch.setattr(store, "read_range", counted)
    with open_reader(at, block) as f:
        found = bytearray(len(data))
        assert f.readinto(found) == len(data) and bytes(found) == data
        assert max(asked) == 1000 and len(asked) == 11
        f.seek(3)
        assert f.read() == data[3:]
        assert max(asked) == 1000


def test_files_of_this_machine_have_the_same_face(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    file = tmp_path / "a/b/c"
    file.write_bytes(b"local")
    with open_reader(file) as f:
        assert f.read() == read(file) == b"local"
    assert list(find(tmp_path)) == [file] and find(tmp_path)[file] == entry(file)
    assert is_folder(file.parent) and not is_folder(file) and entry(file.parent) is None
    remove_many([file, file])
    assert entry(file) is None and find(tmp_path) == {}
    with pytest.raises(FileNotFoundError):
        open_reader(file)


def test_a_version_changes_with_the_content(root: Remote, put: Put) -> None:
    before = entry(put("a", b"1"))
    assert before and before.version
    assert before == entry(root / "a") == find(root)[root / "a"] == match(f"{root}/?")[f"{root}/a"]
    after = entry(put("a", b"2"))
    assert after and after.size == before.size and after.version != before.version


def test_what_is_not_there(root: Remote, put: Put, tmp_path: Path) -> None:
    nothing = root / "nothing"
    assert entry(nothing) is None and not is_folder(nothing)
    assert match(str(nothing)) == match(f"{nothing}/*") == find(nothing) == {}
    with pytest.raises(FileNotFoundError):
        read(nothing)
    with pytest.raises(FileNotFoundError):
        open_reader(nothing)
    with pytest.raises(FileNotFoundError):
        copy(nothing, root / "copy")
    with pytest.raises(UserError, match="nothing vanished; run again"):
        download(nothing, tmp_path / "copy")
    remove(nothing)
    remove_many([nothing, nothing])


def test_folders_are_only_names(root: Remote, put: Put) -> None:
    put("a/b/c", b"")
    for folder in (root, root / "a", root / "a/b"):
        assert is_folder(folder) and entry(folder) is None
    assert not is_folder(root / "a/b/c") and not is_folder(root / "a/b/c/d")


def test_find_takes_all_below_and_nothing_beside(root: Remote, put: Put) -> None:
    for name in ("a/2", "a/10", "a/b/c/d", "a.txt", "ab/1", "b"):
        put(name, name.encode())
    assert names(find(root / "a"), root) == ["a/10", "a/2", "a/b/c/d"]
    assert names(find(root), root) == ["a.txt", "a/10", "a/2", "a/b/c/d", "ab/1", "b"]
    assert find(root / "b") == {}  # a file has none below it
    assert [found.size for found in find(root / "a").values()] == [4, 3, 7]


def test_match_knows_patterns(root: Remote, put: Put) -> None:
    for name in ("a1.txt", "a2.txt", "b1.txt", "a1.json", "deep/er/a3.txt"):
        put(name, b"x")
    for pattern, fits in {
        "a1.txt": ["a1.txt"],
        "a*.txt": ["a1.txt", "a2.txt"],
        "?1.txt": ["a1.txt", "b1.txt"],
        "[!b]?.txt": ["a1.txt", "a2.txt"],
        "**/*.txt": ["a1.txt", "a2.txt", "b1.txt", "deep/er/a3.txt"],
        "*/er/*": ["deep/er/a3.txt"],
        "deep*": [],
        "c*": [],
    }.items():
        assert sorted(match(f"{root}/{pattern}")) == [f"{root}/{name}" for name in fits], pattern


def test_a_literal_name_wins_over_the_pattern(root: Remote, put: Put) -> None:
    for name in ("x[1]", "x1", "*"):
        put(name, name.encode())
    for literal in ("x[1]", "*"):
        found = match(f"{root}/{literal}")
        assert list(found) == [f"{root}/{literal}"]
        assert read(Remote(*found)) == literal.encode()


def test_any_name_is_that_name(s3: Bucket, tmp_path: Path) -> None:
    """Each lies where another would lead to if it were bent."""
    data = {name: name.encode() for name in sorted(NAMES)}
    for name in data:
        (tmp_path / "file").write_bytes(data[name])
        upload(tmp_path / "file", s3.at / name)
        copy(s3.at / name, s3.at / f"copied/{name}")
        assert s3.get(name) == s3.get(f"copied/{name}") == data[name]
    found = find(s3.at)
    assert names(found, s3.at) == sorted([*data, *(f"copied/{name}" for name in data)])
    for name in data:
        at = s3.at / f"copied/{name}"
        assert match(str(at)) == {str(at): found[at]}
        with open_reader(at) as f:
            assert read(at) == f.read() == data[name]
        download(at, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data[name]
        remove(at)
    assert s3.names() == sorted(data)


def test_a_name_that_s3fs_takes_for_a_version_is_refused(s3: Bucket) -> None:
    s3.put("a", b"another")
    at = s3.put("a?versionId=null", b"right")
    for do in (read, entry, open_reader, remove):
        with pytest.raises(UserError, match="names a version"):
            do(at)
    assert s3.names() == ["a", "a?versionId=null"]


def test_a_listing_of_many_pages(s3: Bucket) -> None:
    keys = [f"many/{i:04}" for i in range(2 * PAGE + 5)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.put(key, key.encode()), keys))
    assert names(find(s3.at / "many"), s3.at) == keys
    assert len(match(f"{s3.at}/many/*")) == len(keys)
    remove_many(find(s3.at / "many"))
    assert s3.names() == []


def test_empty_objects_that_stand_for_folders_are_no_files(s3: Bucket) -> None:
    """Consoles of stores make them."""
    s3.put("out/", b"")
    s3.put("out/sub/", b"")
    s3.put("out", b"a file of that name")
    assert find(s3.at / "out") == match(f"{s3.at}/out/*") == match(f"{s3.at}/out/**") == {}
    remove_many(find(s3.at / "out"))
    assert s3.names() == ["out", "out/", "out/sub/"]


def test_large_objects_go_in_parts(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda *_, **__: 5 * MIB)
    data = noise(17 * MIB)
    (tmp_path / "big").write_bytes(data)
    upload(tmp_path / "big", s3.at / "big")
    etag = s3.client.head_object(Bucket=s3.name, Key="big")["ETag"]
    assert etag.endswith('-4"')  # parts
    download(s3.at / "big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    assert read(s3.at / "big") == data


@pytest.mark.parametrize("block", [500, 4096, 1 << 20])
def test_a_reader_is_a_file(root: Remote, put: Put, block: int) -> None:
    data = noise(10_000)
    local, rng = io.BytesIO(data), random.Random(block)
    with open_reader(put("data", data), block) as remote:
        for _ in range(15):
            whence = rng.choice([io.SEEK_SET, io.SEEK_END])
            step = rng.randint(0, len(data)) if whence == io.SEEK_SET else -rng.randint(0, 2000)
            size = rng.choice([0, 1, 499, 501, 5000, len(data)])
            assert remote.seek(step, whence) == local.seek(step, whence)
            assert remote.read(size) == local.read(size)
            assert remote.tell() == local.tell()
        assert remote.seek(10**9) == 10**9 and remote.read(5) == b""
        remote.seek(5)
        assert remote.read() == data[5:] and remote.read() == b""
        remote.seek(0)
        assert list(remote) == list(io.BytesIO(data))
        with pytest.raises((OSError, ValueError)):
            remote.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        remote.read(1)


def test_a_reader_asks_for_blocks(
    s3: Bucket, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BLOCK", 1000)
    at = s3.put("data", noise(10_000))
    with open_reader(at, 1000) as f:
        for _ in range(100):
            f.read(100)
        assert faulty.count("GET") == 10
        f.seek(0)
        assert len(f.read()) == 10_000
        assert faulty.count("GET") == 20


def test_arrow_and_parquet_read_by_ranges(root: Remote, put: Put) -> None:
    table = pa.table({"id": range(20_000), "text": [f"text {i}" for i in range(20_000)]})
    arrow, parquet = io.BytesIO(), io.BytesIO()
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    pq.write_table(table, parquet, row_group_size=5000)
    with open_reader(put("arrow", arrow.getvalue()), 4096) as f:
        reader = pa.ipc.open_file(pa.PythonFile(f, "r"))
        assert reader.get_batch(13).equals(table.slice(13_000, 1000).to_batches()[0])
        assert reader.read_all().equals(table)
    with open_reader(put("parquet", parquet.getvalue()), 4096) as f, pq.ParquetFile(f) as file:
        assert file.read_row_group(2, ["id"]).equals(table.select(["id"]).slice(10_000, 5000))
        assert file.read().equals(table)


def test_many_threads_share_a_store(root: Remote, put: Put) -> None:
    contents = {put(f"in/{i}", noise(1000 + i)): noise(1000 + i) for i in range(8)}
    rest = list(contents)

    def work(i: int) -> None:
        at = rest[i % len(rest)]
        assert read(at) == contents[at]
        copy(at, root / f"out/{i}")
        assert list(find(root / "in")) == rest and is_folder(root / "in")
        assert len(match(f"{root}/in/*")) == len(rest)
        with open_reader(root / f"out/{i}", 100) as f:
            f.seek(900)
            assert f.read(200) == contents[at][900:1100]

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    assert len(find(root / "out")) == 32


def test_what_others_write_is_seen_at_once(s3: Bucket) -> None:
    """No listing is remembered: workers and other machines write there too."""
    assert find(s3.at / "in") == {} and not is_folder(s3.at / "in")
    for number in (1, 2, 3):
        s3.put(f"in/{number}", b"x")
        assert len(find(s3.at / "in")) == len(match(f"{s3.at}/in/*")) == number
        assert entry(s3.at / f"in/{number}") and is_folder(s3.at / "in")
    s3.client.delete_object(Bucket=s3.name, Key="in/1")
    assert entry(s3.at / "in/1") is None and len(find(s3.at / "in")) == 2


def test_a_worker_of_its_own_reads_and_ends_in_silence(s3: Bucket) -> None:
    code = (
        "from dataprep.storage import place, read; "
        f"print(read(place({str(s3.put('a', b'remote'))!r})))"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "b'remote'\n", "")


def test_a_store_that_wants_more_than_a_url() -> None:
    with pytest.raises(UserError, match="cannot open zip://a.zip: .*copy the files"):
        entry(Remote("zip://a.zip"))
