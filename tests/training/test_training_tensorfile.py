"""Safetensors files: as the library of that name reads and writes them, and hostile ones."""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dataprep.errors import UserError
from dataprep.files import sha256_file
from training.sections import Dtype
from training.tensorfile import TensorFile, to_bfloat16, write_tensors

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([1.5, -2.25], np.float32)


def write(path: Path, dtype: Dtype = "float32") -> str:
    return write_tensors(path, [("b", (2,)), ("a", (2, 3))], [B, A], dtype)


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert write(path) == sha256_file(path)
    found = load_file(path)
    assert {name: values.tolist() for name, values in found.items()} == {
        "a": A.tolist(),
        "b": B.tolist(),
    }
    write(path, "float16")
    assert load_file(path)["a"].dtype == np.float16


def test_metadata_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, [("b", (2,))], [B], metadata={"model": '{"名": 1}'})
    told = {"format": "pt", "model": '{"名": 1}'}
    assert TensorFile(path).metadata == told
    with safe_open(path, "numpy") as theirs:
        assert theirs.metadata() == told
    save_file({"b": B}, path, {"x": "y"})
    assert TensorFile(path).metadata == {"x": "y"}
    save_file({"b": B}, path)
    assert TensorFile(path).metadata == {}


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"half": A.astype(np.float16), "a": A, "one": np.full((), 7, np.float32)}, path)
    file = TensorFile(path)
    shapes = {name: entry.shape for name, entry in file.entries.items()}
    assert shapes == {"half": (2, 3), "a": (2, 3), "one": ()}
    assert file.read("a", 1, 4).tolist() == [1, 2, 3]
    assert file.read("half", 4, 6).tolist() == [4, 5]
    assert file.read("one", 0, 1).tolist() == [7]


def test_bfloat16_is_rounded_as_mindspore_does(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint64).astype(np.uint32)
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x80000001], np.uint32)
    values = np.r_[halfway, bits].view(np.float32)
    path = tmp_path / "x.safetensors"
    write_tensors(path, [("a", values.shape)], [values], "bfloat16")
    ours = TensorFile(path).read("a", 0, len(values))
    theirs = ms.Tensor(values).astype(ms.bfloat16).astype(ms.float32).asnumpy()
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert to_bfloat16(halfway.view(np.float32)).tolist() == [
        0x3F80,
        0x3F82,
        0x3F81,
        0x7F80,
        0x8000,
    ]


Header = dict[str, Any]


def spoil(path: Path, change: Callable[[Header], Any]) -> None:
    """Changes the header; its length is told right."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def told_as(**changes: Any) -> Callable[[Header], Header]:
    return lambda header: {**header, "a": {**header["a"], **changes}}


def without(key: str) -> Callable[[Header], Header]:
    return lambda header: {**header, "a": {k: v for k, v in header["a"].items() if k != key}}


HUGE = [1 << 62, 1 << 62]


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda h: [1], "its header names no tensors"),
        (lambda h: {"a": 1}, "tensor a has no dtype, shape and data_offsets"),
        (without("dtype"), "tensor a has no dtype"),
        (told_as(shape=[3, 3]), "shape and data_offsets of tensor a disagree"),
        (told_as(shape=[-2, -3]), "of tensor a are no sizes"),
        (told_as(shape=[2.0, 3]), "of tensor a are no sizes"),
        (told_as(shape=HUGE), "tensor a has the impossible shape"),
        (told_as(data_offsets=[8]), "of tensor a are no sizes"),
        (told_as(data_offsets=[0, 24]), "its tensors overlap or leave holes"),
        (told_as(data_offsets=[12, 36]), "its tensors overlap or leave holes"),
        (lambda h: {"b": h["b"]}, "it is not as long as its tensors"),
        (told_as(dtype="I64"), "tensor a is of type I64; give a file of float32"),
        (told_as(dtype=["F32"]), "tensor a is of type .'F32'."),
        (lambda h: {**h, "__metadata__": {"format": 1}}, "its metadata are not strings"),
        (lambda h: {**h, "__metadata__": ["pt"]}, "its metadata are not strings"),
    ],
)
def test_a_header_that_lies_is_told(
    tmp_path: Path, change: Callable[[Header], Any], told: str
) -> None:
    path = tmp_path / "x.safetensors"
    write(path)
    spoil(path, change)
    with pytest.raises(UserError, match=told):
        TensorFile(path)


@pytest.mark.parametrize("size", [0, 7, 8, 20])
def test_a_file_cut_short_is_damaged(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    write(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="x.safetensors is damaged"):
        TensorFile(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read .*x.safetensors: No such file"):
        TensorFile(tmp_path / "x.safetensors")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damaged_header_ends_in_one_line_or_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    write(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 33))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        file = TensorFile(path)
    except UserError:
        return
    for name in file.entries:
        assert file.read(name, 0, file.size(name)).dtype == np.float32


def test_no_descriptor_is_held_and_views_outlive_the_file(tmp_path: Path) -> None:
    """A checkpoint has a file a rank, and a process may open some thousand."""
    path = tmp_path / "x.safetensors"
    write(path)
    before = len(os.listdir("/proc/self/fd"))
    files = [TensorFile(path) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    view = files[0].read("a", 0, 6)
    del files
    gc.collect()
    assert view.tolist() == A.reshape(-1).tolist()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
