"""ShardWriter: a shard by eye, deterministic bytes, and what is left after a failure."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataprep
from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.mindrecord import Layout, ShardWriter, fit_layout

TINY = {"a": np.array([[7]], np.int32), "b": np.array([[1, -100, 40_000, 300, 0]], np.int32)}
TINY_HEADER = (
    b'{"header_size":16384,"index_fields":null,"page":['
    b'{"end_row_id":1,"page_id":0,"page_size":45,"page_type":"BLOB_DATA","page_type_id":0,'
    b'"row_group_ids":[{"id":0,"offset":0}],"shard_id":0,"start_row_id":0},'
    b'{"end_row_id":0,"page_id":1,"page_size":13,"page_type":"RAW_DATA","page_type_id":0,'
    b'"row_group_ids":[{"id":0,"offset":0}],"shard_id":0,"start_row_id":0}'
    b'],"page_size":32768,"compression_size":3,"schema":[{"blob_fields":["a","b"],'
    b'"desc":"mindprep","schema":{"a":{"shape":[1],"type":"int32"},'
    b'"b":{"shape":[5],"type":"int32"}}}],"shard_addresses":["tiny.mindrecord"],"shard_id":0,'
    b'"statistics":null,"version":"3.0"}'
)
TINY_BLOB = bytes.fromhex(
    "2500000000000000"  # 37 bytes follow
    "0000000000000006 00000001 00 07"  # a
    "000000000000000f 00000005 0900 01 9c 409c0000 2c01 00"  # b
)
TINY_RAW = bytes.fromhex("0500000000000000 81 a2 6964 00")  # 5 bytes follow: {"id": 0}


def test_a_tiny_shard_byte_by_byte(tmp_path: Path, write: Callable[..., ShardWriter]) -> None:
    path = tmp_path / "tiny.mindrecord"
    writer = write(path, TINY, fit_layout({"a": 1, "b": 5}, 1))
    data = path.read_bytes()
    header = len(TINY_HEADER).to_bytes(8, "little") + TINY_HEADER
    assert data[:16_384] == header.ljust(16_384, b"\0")
    assert data[16_384 : 16_384 + 32_768] == TINY_BLOB.ljust(32_768, b"\0")
    assert data[16_384 + 32_768 :] == TINY_RAW
    assert (writer.rows, writer.bytes) == (1, len(data)) and writer.bytes < 50_000
    assert writer.sha256 == sha256_file(path)
    assert writer.index_sha256 == sha256_file(tmp_path / "tiny.mindrecord.db")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.mindrecord", "tiny.mindrecord.db"]


def test_mode_respects_the_umask(tmp_path: Path, write: Callable[..., ShardWriter]) -> None:
    before = os.umask(0o022)
    try:
        write(tmp_path / "a.mindrecord", TINY)
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o644}


def test_bytes_do_not_depend_on_how_rows_are_handed_over(
    tmp_path: Path, write: Callable[..., ShardWriter], random_rows: Callable[..., Any]
) -> None:
    rows = random_rows({"ids": 31, "mask": 6}, 3_000)
    rows["ids"].flags.writeable = False  # as Arrow's arrays are
    hashes = set()
    for i, block in enumerate((1, 7, 1_000, 3_000, 3_000)):
        writer = write(tmp_path / str(i) / "a.mindrecord", rows, block=block)
        hashes.add((writer.sha256, writer.index_sha256, writer.rows))
    strided = {c: np.repeat(v, 2, axis=1)[:, ::2] for c, v in reversed(rows.items())}
    writer = write(tmp_path / "s" / "a.mindrecord", strided)
    hashes.add((writer.sha256, writer.index_sha256, writer.rows))
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"a": TINY["a"]}, r"columns are \['a', 'b'\], the block has \['a'\]"),
        (TINY | {"c": TINY["a"]}, r"the block has \['a', 'b', 'c'\]"),
        (TINY | {"b": TINY["b"].astype(np.int64)}, r"'b' must be int32 \(1, 5\), not int64"),
        (TINY | {"b": TINY["b"][:, :4]}, r"'b' must be int32 \(1, 5\), not int32 \(1, 4\)"),
        (TINY | {"b": np.repeat(TINY["b"], 2, axis=0)}, r"not int32 \(2, 5\)"),
        (TINY | {"b": TINY["b"][0]}, r"not int32 \(5,\)"),
        (TINY | {"b": [[1, 2, 3, 4, 5]]}, r"not int64"),
    ],
)
def test_a_wrong_block_is_refused(tmp_path: Path, block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), open_tiny(tmp_path) as writer:
        writer.write(block)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_leaves_the_earlier_shard_alone(
    tmp_path: Path, write: Callable[..., ShardWriter]
) -> None:
    write(tmp_path / "a.mindrecord", TINY)
    before = content(tmp_path)
    # An OSError of the caller's own is not a failed write.
    with pytest.raises(OSError, match="input is gone"), open_tiny(tmp_path) as writer:
        writer.write({c: v + 1 for c, v in TINY.items()})
        raise OSError("input is gone")
    assert content(tmp_path) == before


def test_a_new_shard_replaces_the_earlier_one(
    tmp_path: Path, write: Callable[..., ShardWriter]
) -> None:
    write(tmp_path / "a.mindrecord", {c: np.repeat(v, 9, axis=0) for c, v in TINY.items()})
    write(tmp_path / "a.mindrecord", TINY)
    write(tmp_path / "fresh" / "a.mindrecord", TINY)
    fresh = content(tmp_path / "fresh")
    assert {name: content(tmp_path)[name] for name in fresh} == fresh


def test_no_rows_and_too_many_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"), open_tiny(tmp_path):
        pass
    wide = {"a": 8_000}  # one worst row a page, so the page list grows by 150 bytes a row
    block = {"a": np.full((200, 8_000), 1 << 20, np.int32)}
    message = "give fit_layout the largest number of rows"
    with (
        pytest.raises(ValueError, match=message),
        ShardWriter(tmp_path / "a.mindrecord", wide, Layout(1 << 14, 1 << 16)) as writer,
    ):
        writer.write(block)
    with pytest.raises(ValueError, match="use fit_layout"):
        ShardWriter(tmp_path / "a.mindrecord", wide, Layout(1 << 14, 1 << 15))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_the_rows_are_written(tmp_path: Path) -> None:
    """A limit on the file size stands for the full disk: the system itself refuses the write."""
    script = (
        "import resource, sys, numpy as np; from pathlib import Path\n"
        "from dataprep.errors import UserError\n"
        "from dataprep.mindrecord import ShardWriter, fit_layout\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "columns = {'a': 1000}\n"
        "try:\n"
        "    with ShardWriter(Path(sys.argv[1]), columns, fit_layout(columns, 1000)) as writer:\n"
        "        try:\n"
        "            writer.write({'a': np.full((1000, 1000), 1 << 20, np.int32)})\n"
        "        except UserError as e:\n"
        "            print(e)\n"
        "except UserError as e:\n"
        "    print('not published:', e)\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(dataprep.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.mindrecord")],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first.startswith(f"cannot write {tmp_path / 'a.mindrecord'}: File too large; free some")
    assert second == f"not published: {first}"  # even when a caller swallows the error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["dataprep.mindrecord.writer.sync", "pathlib.Path.write_bytes"])
def test_a_full_disk_at_the_end(
    tmp_path: Path,
    write: Callable[..., ShardWriter],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path / "a.mindrecord", TINY)
    before = content(tmp_path)
    monkeypatch.setattr(step, full)
    with (
        pytest.raises(UserError, match="cannot write .*a.mindrecord: No space left"),
        open_tiny(tmp_path) as writer,
    ):
        writer.write({c: v + 1 for c, v in TINY.items()})
    assert content(tmp_path) == before


def test_a_chunk_that_fails_is_told_by_the_next_call_or_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread writes the chunk, after `write` has returned."""

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardWriter, "_put", full)
    with pytest.raises(UserError, match="No space left"), open_tiny(tmp_path) as writer:
        writer.write(TINY)
    assert list(tmp_path.iterdir()) == []
    writer = open_tiny(tmp_path).__enter__()
    writer.write(TINY)
    for _ in range(2):
        with pytest.raises(UserError, match="cannot write .*a.mindrecord: No space left"):
            writer.write(TINY)
    monkeypatch.undo()  # some space is free again, but a chunk is lost
    with pytest.raises(UserError, match="No space left"):
        writer.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_no_thread_outlives_the_writer(
    tmp_path: Path, write: Callable[..., ShardWriter], random_rows: Callable[..., Any]
) -> None:
    before = threading.active_count()
    write(tmp_path / "a.mindrecord", random_rows({"ids": 31}, 3_000), block=100)
    with pytest.raises(KeyError), open_tiny(tmp_path) as writer:
        writer.write(TINY)
        raise KeyError
    assert threading.active_count() == before


def test_a_block_may_be_changed_once_it_was_handed_over(
    tmp_path: Path, write: Callable[..., ShardWriter], random_rows: Callable[..., Any]
) -> None:
    rows = random_rows({"ids": 300}, 3_000)
    wanted = write(tmp_path / "1" / "a.mindrecord", rows).sha256
    path = tmp_path / "2" / "a.mindrecord"
    with ShardWriter(path, {"ids": 300}, Layout(1 << 14, 1 << 15)) as writer:
        block = np.empty((1_000, 300), np.int32)
        for first in range(0, 3_000, 1_000):
            block[:] = rows["ids"][first : first + 1_000]
            writer.write({"ids": block})
            block[:] = -1
    assert writer.sha256 == wanted


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), open_tiny(tmp_path / "file"):
        pass


def open_tiny(folder: Path) -> ShardWriter:
    return ShardWriter(folder / "a.mindrecord", {"a": 1, "b": 5}, Layout(1 << 14, 1 << 15))


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
