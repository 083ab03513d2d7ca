"""Compressed files, judged by Python's gzip, bz2 and zstandard: members, damage, bombs."""

import bz2
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.readers import Input, Read, blocks, decompress, expand, plan_splits

Reads = Callable[..., Any]

RECORDS = [f"record {i} " + "x" * (i % 50) for i in range(2000)]
DATA = b"".join(json.dumps({"text": r}).encode() + b"\n" for r in RECORDS)
MIDDLE = len(DATA) // 2 + 3  # inside a record


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def unzstd(data: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    return bytes(reader.read())


CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gz": (lambda data: gzip.compress(data, mtime=0), gzip.decompress),
    "bz2": (bz2.compress, bz2.decompress),
    "zst": (zstd, unzstd),
}


def frame(blocks: list[bytes], window_log: int = 17, repeat: int = 0) -> bytes:
    """A zstd frame (RFC 8878, 3.1.1) of raw blocks, or of bytes that stand for `repeat` each."""
    out = bytearray([0x28, 0xB5, 0x2F, 0xFD, 0, (window_log - 10) << 3])
    for i, block in enumerate(blocks):
        size, kind = (repeat, 1) if repeat else (len(block), 0)
        out += (size << 3 | kind << 1 | (i == len(blocks) - 1)).to_bytes(3, "little") + block
    return bytes(out)


def write(tmp_path: Path, data: bytes, name: str) -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("cuts", [[], [len(DATA)], [MIDDLE], [0, 1, MIDDLE, MIDDLE, len(DATA)]])
def test_members_join_wherever_they_are_cut(
    suffix: str, cuts: list[int], tmp_path: Path, reads: Reads
) -> None:
    pack, unpack = CODECS[suffix]
    edges = [0, *cuts, len(DATA)]
    members = b"".join(pack(DATA[a:b]) for a, b in zip(edges, edges[1:]))
    assert unpack(members) == DATA
    result = reads(write(tmp_path, members, f"x.jsonl.{suffix}"))
    assert result.texts == RECORDS
    assert not result.warnings


@settings(deadline=None, max_examples=40)
@given(
    suffix=st.sampled_from(sorted(CODECS)),
    members=st.lists(st.binary(max_size=40) | st.just(b"a\n" * 3000), max_size=4),
    chunk=st.integers(1, 50),
)
def test_a_stream_is_what_the_library_says(
    suffix: str, members: list[bytes], chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pack, unpack = CODECS[suffix]
    data = b"".join(map(pack, [b"", *members]))
    path = write(tmp_path_factory.mktemp("stream"), data, f"x.txt.{suffix}")
    file = expand([Input(str(path))])[0]
    damage: list[str] = []
    with pytest.MonkeyPatch.context() as patch, path.open("rb") as raw:
        patch.setattr(decompress, "_CHUNK", chunk)
        patch.setattr(decompress._Zstd, "_PIECE", -(-chunk // 3))
        patch.setattr(decompress, "MAX_STEP", 2 * chunk)
        stream = io.BufferedReader(decompress.Decompressed(raw, file, damage.append), 64)
        assert stream.read() == unpack(data)
    assert not damage


@pytest.mark.parametrize("suffix", CODECS)
def test_files_are_told_by_content_not_by_name(suffix: str, tmp_path: Path, reads: Reads) -> None:
    pack, _ = CODECS[suffix]
    assert reads(write(tmp_path, DATA, f"plain.jsonl.{suffix}")).texts == RECORDS
    assert reads(write(tmp_path, pack(DATA), f"{suffix}.jsonl")).texts == RECORDS


def test_text_that_begins_like_a_compressed_file(tmp_path: Path, reads: Reads) -> None:
    for i, text in enumerate(["BZhang is a name", "BZh91AY&S", "(not zstd", "P*M"]):
        assert reads(write(tmp_path, text.encode(), f"{i}.txt")).texts == [text]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "zst"])
def test_zeros_between_members_and_after_them_are_padding(
    suffix: str, tmp_path: Path, reads: Reads
) -> None:
    pack, _ = CODECS[suffix]
    data = pack(DATA[:MIDDLE]) + bytes(512) + pack(DATA[MIDDLE:]) + bytes(100_000)
    result = reads(write(tmp_path, data, "x.jsonl"))
    assert result.texts == RECORDS
    assert not result.warnings


SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"


@pytest.mark.parametrize(
    "data",
    [
        SKIPPABLE + zstd(DATA),
        zstd(DATA[:MIDDLE]) + SKIPPABLE + zstd(DATA[MIDDLE:]) + SKIPPABLE,
        zstandard.ZstdCompressor(write_content_size=False).compress(DATA),
        zstd(DATA, write_checksum=True),
        frame([DATA[:MIDDLE], DATA[MIDDLE:]], window_log=28),
    ],
    ids=["skippable", "skippable_between", "no_content_size", "checksum", "window_28"],
)
def test_zstd_frames(data: bytes, tmp_path: Path, reads: Reads) -> None:
    result = reads(write(tmp_path, data, "x.jsonl"))
    assert result.texts == RECORDS
    assert not result.warnings


def test_a_zstd_window_over_the_limit_is_refused(tmp_path: Path, reads: Reads) -> None:
    path = write(tmp_path, frame([DATA], window_log=29), "x.jsonl")
    with pytest.raises(UserError, match=r"x\.jsonl needs a zstd window of more than 256 MiB"):
        reads(path)


def with_bad_crc(data: bytes) -> bytes:
    return data[:-8] + bytes(b ^ 255 for b in data[-8:-4]) + data[-4:]


GZ = gzip.compress(DATA, mtime=0)


@pytest.mark.parametrize(
    ("data", "kept", "why"),
    [
        (GZ[:-4], len(RECORDS), "ends in the middle"),
        (GZ[:-9], len(RECORDS) - 1, "ends in the middle"),
        (GZ[: len(GZ) // 2], len(RECORDS) // 3, "ends in the middle"),
        (with_bad_crc(GZ), len(RECORDS), "incorrect data check"),
        (GZ + b"garbage", len(RECORDS), "incorrect header check"),
        (GZ + b"\x1f", len(RECORDS), "ends in the middle"),
        (GZ + GZ[: len(GZ) // 2], len(RECORDS) * 4 // 3, "ends in the middle"),
        (bz2.compress(DATA) + b"garbage", len(RECORDS), "Invalid data stream"),
        (bz2.compress(DATA) + bz2.compress(DATA)[:-10], len(RECORDS), "ends in the middle"),
        (zstd(DATA) + b"garbage", len(RECORDS), "Unknown frame descriptor"),
        (zstd(DATA) + zstd(DATA)[:-10], len(RECORDS), "ends in the middle"),
        (zstd(DATA) + SKIPPABLE[:-1], len(RECORDS), "ends in the middle"),
    ],
)
def test_what_can_be_read_of_a_damaged_file_is_kept(
    data: bytes, kept: int, why: str, tmp_path: Path, reads: Reads
) -> None:
    path = write(tmp_path, data, "x.jsonl")
    result = reads(path)
    whole = result.texts
    assert len(whole) >= kept
    assert whole == (RECORDS + RECORDS)[: len(whole)]
    assert len(result.removed) <= 1, "at most the record at the damage"
    assert result.counts["notes.read.damaged_files"] == 1
    assert len(result.warnings) == 1
    assert "x.jsonl is damaged" in result.warnings[0] and why in result.warnings[0]
    with pytest.raises(UserError, match=rf"x\.jsonl is damaged: .*{why}.* byte {len(data):,} "):
        reads(path, read=Read(strict=True))


def test_a_gzip_file_broken_in_the_middle_is_kept_up_to_there(tmp_path: Path, reads: Reads) -> None:
    member = bytearray(gzip.compress(DATA, mtime=0))
    member[len(member) // 2] ^= 0xFF
    result = reads(write(tmp_path, bytes(member) + GZ, "x.jsonl"), read=Read(max_bad_fraction=1))
    good = [t for t in result.texts if t in set(RECORDS)]
    assert good[: len(RECORDS) // 3] == RECORDS[: len(RECORDS) // 3]
    assert result.counts["notes.read.damaged_files"] == 1


def test_an_empty_compressed_file_has_no_documents(tmp_path: Path, reads: Reads) -> None:
    for suffix, (pack, _) in CODECS.items():
        assert reads(write(tmp_path, pack(b""), f"x.txt.{suffix}")).texts == []


BOMBS = {
    "zst": frame([b"a"] * 16_000, repeat=128 << 10),  # 64 KB stand for 2 GB
    "bz2": bz2.compress(bytes(120_000_000)),
}


@pytest.mark.parametrize("suffix", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(suffix: str, tmp_path: Path, reads: Reads) -> None:
    path = write(tmp_path, BOMBS[suffix], f"x.txt.{suffix}")
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"more than 2000 times its size.*decompression bomb"):
            reads(path, read=Read(max_document_mib=1))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_zstd_step_takes_bounded_memory(tmp_path: Path) -> None:
    """16 KB that stand for 500 MB, in a file large enough to be no bomb."""
    bomb = frame([b"a"] * 4000, repeat=128 << 10)
    path = write(tmp_path, bomb + frame([DATA]) * 4, "x.jsonl")
    file = expand([Input(str(path))])[0]
    tracemalloc.start()
    try:
        with path.open("rb") as raw:
            stream = decompress.Decompressed(raw, file, lambda why: None)
            buffer, size = memoryview(bytearray(1 << 20)), 0
            while n := stream.readinto(buffer):
                size += n
        assert size == (4000 * 128 << 10) + 4 * len(DATA)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_disk_error_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GZ, "x.jsonl")
    split = plan_splits(expand([Input(str(path))]))[0]

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(blocks, "open_reader", lambda at: Broken())
    with pytest.raises(UserError, match=r"cannot read .*x\.jsonl: Input/output error"):
        list(blocks.record_blocks(split, 100, lambda why: pytest.fail(why)))
