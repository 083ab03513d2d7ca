"""Safetensors files, read by memory map and written tensor by tensor.

    8 bytes      length of the header, little-endian
    header       JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...},
                 and under "__metadata__" a map of strings to strings
    the rest     the tensors' bytes, C order, one after another without holes

The library of that name loads whole tensors, and none of bfloat16 into NumPy. Here any range of
elements is read as float32 whatever is stored, and a file larger than memory can be written. What
a file says of itself is checked before it is believed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.errors import UserError
from dataprep.files import read_error
from dataprep.mindrecord.filemap import FileMap
from training.pieces import Float32
from training.sections import Dtype

CODES: dict[str, Dtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
STORED = {"F32": "<f4", "BF16": "<u2", "F16": "<f2"}  # how NumPy sees the bytes
MAX_HEADER = 100_000_000  # bytes, the format's own limit
MAX_ELEMENTS = 1 << 48  # of a tensor; offsets fit in int64 by far


@dataclass(frozen=True)
class Entry:
    """A tensor of a file."""

    code: str
    shape: tuple[int, ...]
    start: int
    """Its first byte, counted from the file's first."""


class TensorFile:
    """An open file. Raises UserError when it is damaged or holds other than float tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as f:
                if not os.fstat(f.fileno()).st_size:  # which cannot be mapped
                    raise UserError(f"{path} is damaged: it is empty")
                self._bytes = FileMap(f).array()
        except OSError as e:
            raise read_error(path, e) from e
        self.entries, self.metadata = _header(path, self._bytes)

    def size(self, name: str) -> int:
        """Elements of a tensor."""
        return prod(self.entries[name].shape)

    def read(self, name: str, first: int, last: int) -> Float32:
        """Elements first..last-1 in C order as float32; a view of the file where it can be."""
        entry = self.entries[name]
        kind = np.dtype(STORED[entry.code])
        start = entry.start + first * kind.itemsize
        values = self._bytes[start : start + (last - first) * kind.itemsize].view(kind)
        if entry.code == "BF16":  # the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)


def _header(path: Path, content: npt.NDArray[np.uint8]) -> tuple[dict[str, Entry], dict[str, str]]:
    """Tensors and metadata, checked: every byte behind the header belongs to one tensor."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    if len(content) < 8 or length > min(MAX_HEADER, len(content) - 8):
        raise UserError(f"{path} is damaged: it is shorter than its header says")
    try:
        header = json.loads(content[8 : 8 + length].tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path} is damaged: its header is not valid JSON ({e})") from e
    if not isinstance(header, dict):
        raise UserError(f"{path} is damaged: its header names no tensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(type(v) is str for v in metadata.values()):
        raise UserError(f"{path} is damaged: its metadata are not strings")
    found, spans = {}, []
    for name, told in header.items():
        code, shape, (begin, end) = _told(path, name, told)
        found[name] = Entry(code, shape, 8 + length + begin)
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise UserError(f"{path} is damaged: its tensors overlap or leave holes")
        position = end
    if position != len(content) - 8 - length:
        raise UserError(f"{path} is damaged: it is not as long as its tensors")
    return found, metadata


def _told(path: Path, name: str, told: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """What the header says of a tensor."""
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"{path} is damaged: tensor {name} has no dtype, shape and data_offsets")
    code, shape, offsets = told["dtype"], told["shape"], told["data_offsets"]
    if not (is_sizes(shape) and is_sizes(offsets) and len(offsets) == 2):
        raise UserError(f"{path} is damaged: shape or data_offsets of tensor {name} are no sizes")
    if not isinstance(code, str) or code not in CODES:
        raise UserError(
            f"{path}: tensor {name} is of type {code}; give a file of float32, bfloat16 or float16"
        )
    if prod(shape) > MAX_ELEMENTS:
        raise UserError(f"{path} is damaged: tensor {name} has the impossible shape {shape}")
    if offsets[1] - offsets[0] != prod(shape) * np.dtype(STORED[code]).itemsize:
        raise UserError(f"{path} is damaged: shape and data_offsets of tensor {name} disagree")
    return code, tuple(shape), (offsets[0], offsets[1])


def is_sizes(value: Any) -> bool:
    """Whether this is a list of whole numbers of 0 or more, as JSON has it."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def write_tensors(
    path: Path,
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    values: Iterable[Float32],
    dtype: Dtype = "float32",
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Writes tensors given by name and shape; returns the SHA-256 of the file.

    `values`: of each tensor in turn, of any shape; one is in memory at a time. `metadata` goes into
    the header beside the format, which transformers asks for. Not flushed to disk.
    """
    code = next(code for code, name in CODES.items() if name == dtype)
    width = np.dtype(STORED[code]).itemsize
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    position = 0
    for name, shape in tensors:
        end = position + prod(shape) * width
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    digest = hashlib.sha256()
    with path.open("wb") as f:
        for data in (len(text).to_bytes(8, "little"), text):
            digest.update(data)
            f.write(data)
        for (name, shape), array in zip(tensors, values, strict=True):
            assert array.size == prod(shape), f"{name}: {array.size} values for {shape}"
            stored = _encode(np.ascontiguousarray(array).reshape(-1), dtype).data
            digest.update(stored)
            f.write(stored)
    return digest.hexdigest()


def _encode(values: Float32, dtype: Dtype) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        return to_bfloat16(values)
    return values.astype("<f2" if dtype == "float16" else "<f4", copy=False)


def to_bfloat16(values: Float32) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16 of each, ties to even; a NaN stays one."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
