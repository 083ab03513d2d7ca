"""The format, byte by byte; and every way in which a file can be broken or hostile."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.convert import megatron
from dataprep.convert.megatron import Megatron, create
from tests.convert import judge

DOCUMENTS = [[7, 8, 9], [1], [2, 3]]


def read_all(prefix: Path, first: int = 0, stop: int | None = None) -> list[list[int]]:
    source = Megatron(prefix)
    stop = len(source.look().lengths) if stop is None else stop
    out, at = [], first
    for lists in source.read(first, stop):
        assert lists.first == at and lists.missing is None
        out += [lists.ids[a:b].tolist() for a, b in zip(lists.offsets, lists.offsets[1:])]
        at = first + len(out)
    return out


def write_ours(prefix: Path, documents: list[list[int]], dtype: type = np.uint16) -> None:
    lengths = np.array([len(ids) for ids in documents], np.int64)
    with create(prefix, dtype, lengths, overwrite=False) as ids:
        ids[:] = [i for ids in documents for i in ids]


def test_every_byte_of_a_small_pair(tmp_path: Path) -> None:
    write_ours(tmp_path / "x", DOCUMENTS)
    assert (tmp_path / "x.bin").read_bytes() == bytes.fromhex("0700 0800 0900 0100 0200 0300")
    assert (tmp_path / "x.idx").read_bytes() == bytes.fromhex(
        "4d4d49444944580000"  # MMIDIDX
        "0100000000000000"  # version 1
        "08"  # uint16
        "0300000000000000"  # 3 sequences
        "0400000000000000"  # 4 entries
        "03000000 01000000 02000000"  # lengths
        "0000000000000000 0600000000000000 0800000000000000"  # pointers
        "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
    )
    assert read_all(tmp_path / "x") == DOCUMENTS
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "x.idx"]


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 100), max_size=9), max_size=30),
    dtype=st.sampled_from(["uint8", "int8", "int16", "int32", "int64", "uint16"]),
    data=st.data(),
)
def test_any_documents_of_any_type(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    dtype: str,
    data: st.DataObject,
) -> None:
    prefix = judge.write(tmp_path_factory.mktemp("m") / "x", documents, dtype)
    assert Megatron(prefix).look().lengths.tolist() == [len(ids) for ids in documents]
    assert read_all(prefix) == documents
    first = data.draw(st.integers(0, len(documents)))
    stop = data.draw(st.integers(first, len(documents)))
    assert read_all(prefix, first, stop) == documents[first:stop]


@settings(max_examples=30, deadline=None)
@given(documents=st.lists(st.lists(st.integers(0, 65_000), min_size=1, max_size=9), max_size=30))
def test_what_we_write_another_reads(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("m")
    for name, dtype in (("a", np.uint16), ("b", np.int32)):
        write_ours(folder / name, documents, dtype)
        assert judge.read(folder / name) == (np.dtype(dtype).name, documents)
        judge.write(folder / "other", documents, np.dtype(dtype).name)
        assert (folder / f"{name}.idx").read_bytes() == (folder / "other.idx").read_bytes()


def test_pieces_of_a_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron, "READ_BYTES", 4)
    prefix = judge.write(tmp_path / "x", [[1, 2, 3, 4, 5], [], [6], [7], [8]])
    assert [len(lists.ids) for lists in Megatron(prefix).read(0, 5)] == [5, 2, 1]
    assert read_all(prefix) == [[1, 2, 3, 4, 5], [], [6], [7], [8]]


def test_documents_of_several_sequences_are_one_each(tmp_path: Path) -> None:
    prefix = judge.write_sequences(tmp_path / "x", [[1, 2], [3], [4], [], [5]], [0, 2, 2, 5])
    found = Megatron(prefix).look()
    assert read_all(prefix) == [[1, 2, 3], [], [4, 5]]
    assert found.lengths.tolist() == [3, 0, 2]
    assert found.notes == [
        f"{prefix}.idx: 2 documents of several sequences are read as one document each"
    ]


def test_sequences_in_any_order_in_the_bin(tmp_path: Path) -> None:
    pointers = np.array([8, 0, 4], np.int64).tobytes()
    prefix = judge.write_sequences(
        tmp_path / "x", [[1, 2], [3, 4], [5, 6]], [0, 1, 2, 3], pointers=pointers
    )
    assert read_all(prefix) == [[5, 6], [1, 2], [3, 4]]


def test_bytes_without_a_sequence_are_told(tmp_path: Path) -> None:
    prefix = judge.write(tmp_path / "x", DOCUMENTS)
    with Path(f"{prefix}.bin").open("ab") as f:
        f.write(b"\0\0\0")
    assert Megatron(prefix).look().notes == [
        f"{prefix}.bin: 3 bytes belong to no sequence of its index, and are not read"
    ]


def longs(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


HOSTILE = {
    "magic": ({"magic": b"TNTIDX\x00\x00\x00"}, "is no Megatron index: it begins with b'TNTIDX"),
    "version": ({"version": struct.pack("<Q", 2)}, "has version 2; only version 1 can be read"),
    "code": ({"code": b"\x09"}, "damaged: it has dtype code 9; known are 1 to 8"),
    "code 0": ({"code": b"\x00"}, "damaged: it has dtype code 0"),
    "float": ({"code": b"\x07"}, "holds values of type float32, not token ids"),
    "many sequences": (
        {"sequences": struct.pack("<Q", 2**63)},
        "damaged: 9,223,372,036,854,775,808 sequences and 4 document entries take",
    ),
    "many entries": ({"entries": struct.pack("<Q", 5)}, "3 sequences and 5 document entries take"),
    "few entries": ({"entries": struct.pack("<Q", 2)}, "3 sequences and 2 document entries take"),
    "a tail": ({"modes": b"\0"}, "take 102 bytes, it has 103"),
    "multimodal": ({"modes": b"\0\1\0"}, "is multimodal: some sequences have a mode"),
    "length": (
        {"lengths": np.array([3, -1, 2], np.int32).tobytes()},
        "damaged: sequence 1 has a length below 0",
    ),
    "long": (
        {"lengths": np.array([3, 1, 3], np.int32).tobytes()},
        "damaged: sequence 2 ends after the .bin, which has 12 bytes",
    ),
    "longest": (
        {"lengths": np.array([2**31 - 1, 1, 3], np.int32).tobytes()},
        "damaged: sequence 0 ends after the .bin",
    ),
    "pointer": ({"pointers": longs(0, -2, 8)}, "damaged: sequence 1 begins before the .bin does"),
    "far pointer": ({"pointers": longs(0, 6, 2**62)}, "damaged: sequence 2 ends after the .bin"),
    "farthest": ({"pointers": longs(0, 6, 2**63 - 2)}, "damaged: sequence 2 ends after the .bin"),
    "odd pointer": ({"pointers": longs(0, 5, 8)}, "sequence 1 begins within an id of 2 bytes"),
    "first": ({"documents": longs(1, 1, 2, 3)}, "from sequence 0 to 3, they go from 1 to 3"),
    "last": ({"documents": longs(0, 1, 2, 2)}, "from sequence 0 to 3, they go from 0 to 2"),
    "back": ({"documents": longs(0, 2, 1, 3)}, "damaged: document 1 ends before it begins"),
    "none": (
        {"documents": b"", "entries": struct.pack("<Q", 0)},
        "from sequence 0 to 3, they are none",
    ),
}


@pytest.mark.parametrize("broken", HOSTILE, ids=str)
def test_a_hostile_index(tmp_path: Path, broken: str) -> None:
    """One line that names the file."""
    other, message = HOSTILE[broken]
    judge.write_sequences(tmp_path / "x", DOCUMENTS, [0, 1, 2, 3], **other)
    with pytest.raises(UserError) as e:
        Megatron(tmp_path / "x").look()
    assert message in str(e.value) and f"{tmp_path}/x.idx" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("size", [0, 5, 9, 20, 33])
def test_an_index_cut_within_its_header(tmp_path: Path, size: int) -> None:
    path = Path(f"{judge.write(tmp_path / 'x', DOCUMENTS)}.idx")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="is no Megatron index|is damaged: it ends after"):
        Megatron(tmp_path / "x").look()


def test_every_cut_of_an_index_is_found(tmp_path: Path) -> None:
    path = Path(f"{judge.write(tmp_path / 'x', DOCUMENTS)}.idx")
    whole = path.read_bytes()
    for size in range(34, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=f"is damaged: .* it has {size}"):
            Megatron(tmp_path / "x").look()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_cut, "x.idx is damaged: sequence 2 ends after the .bin, which has 11 bytes"),
        (Path.unlink, "cannot read .*x.bin: No such file"),
    ],
)
def test_a_harmed_bin(tmp_path: Path, harm: Callable[[Path], Any], message: str) -> None:
    judge.write(tmp_path / "x", DOCUMENTS)
    harm(tmp_path / "x.bin")
    with pytest.raises(UserError, match=message):
        Megatron(tmp_path / "x").look()
    with pytest.raises(UserError, match=message):  # after the look, too
        list(Megatron(tmp_path / "x").read(2, 3))


def test_a_missing_index(tmp_path: Path) -> None:
    judge.write(tmp_path / "x", DOCUMENTS)
    (tmp_path / "x.idx").unlink()
    with pytest.raises(UserError, match=r"cannot read .*x.idx: No such file.* a .bin and a .idx"):
        Megatron(tmp_path / "x").look()


def test_no_documents(tmp_path: Path) -> None:
    write_ours(tmp_path / "x", [])
    assert judge.read(tmp_path / "x") == ("uint16", [])
    assert read_all(tmp_path / "x") == []


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError),
        create(tmp_path / "x", np.uint16, np.array([3]), overwrite=False),
    ):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_others_files_stay(tmp_path: Path) -> None:
    write_ours(tmp_path / "x", DOCUMENTS)
    with pytest.raises(UserError, match="x.bin exists; choose another prefix, or set overwrite"):
        write_ours(tmp_path / "x", [[1]])
    assert judge.read(tmp_path / "x")[1] == DOCUMENTS
    with create(tmp_path / "x", np.uint16, np.array([1]), overwrite=True) as ids:
        ids[:] = 5
        assert judge.read(tmp_path / "x")[1] == DOCUMENTS  # until the end
    assert judge.read(tmp_path / "x")[1] == [[5]]


def test_a_document_too_long_for_the_format(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="document 1 has 2,147,483,648 tokens; a sequence"),
        create(tmp_path / "x", np.uint16, np.array([1, 2**31]), overwrite=False),
    ):
        raise AssertionError
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write .*file/x.bin"):
        write_ours(tmp_path / "file" / "x", DOCUMENTS)


def test_a_full_disk(tmp_path: Path) -> None:
    """Told before a byte is mapped: a full disk under a map would kill the process."""
    program = (
        "import resource, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from dataprep import UserError\n"
        "from dataprep.convert.megatron import create\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    with create(Path(sys.argv[1]), np.uint16, np.array([9000]), False) as ids:\n"
        "        ids[:] = 1\n"
        "except UserError as e:\n"
        "    print(e)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "x.bin: File too large; free some space, then run again" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.bin").mkdir()
    (tmp_path / "x.idx").write_bytes(b"of somebody")
    with (
        pytest.raises(UserError, match="x.bin is no file, and in the way"),
        create(tmp_path / "x", np.uint16, np.array([1]), overwrite=True),
    ):
        pass
    assert (tmp_path / "x.idx").read_bytes() == b"of somebody"
