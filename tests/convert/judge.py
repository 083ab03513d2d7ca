"""Megatron's format written and read in the plainest way, to judge ours by. No code is shared."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float32": 7, "uint16": 8}
Documents = list[list[int]]


def write(prefix: Path, documents: Sequence[Sequence[int]], dtype: str = "uint16") -> Path:
    """One sequence a document."""
    return write_sequences(prefix, documents, [*range(len(documents) + 1)], dtype)


def write_sequences(
    prefix: Path,
    sequences: Sequence[Sequence[int]],
    documents: Sequence[int],
    dtype: str = "uint16",
    /,
    **other: Any,
) -> Path:
    """`other`: header fields and arrays to be written in place of the right ones."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    flat = np.array([i for ids in sequences for i in ids], dtype)
    Path(f"{prefix}.bin").write_bytes(flat.tobytes())
    lengths = np.array([len(ids) for ids in sequences], np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    parts = {
        "magic": b"MMIDIDX\x00\x00",
        "version": struct.pack("<Q", 1),
        "code": struct.pack("<B", CODES[dtype]),
        "sequences": struct.pack("<Q", len(sequences)),
        "entries": struct.pack("<Q", len(documents)),
        "lengths": lengths.tobytes(),
        "pointers": ((ends - lengths) * flat.itemsize).tobytes(),
        "documents": np.array(documents, np.int64).tobytes(),
        "modes": b"",
    }
    assert other.keys() <= parts.keys()
    Path(f"{prefix}.idx").write_bytes(b"".join({**parts, **other}.values()))
    return prefix


def read(prefix: Path) -> tuple[str, Documents]:
    """(dtype, ids of each document)."""
    index, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, entries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = next(name for name, value in CODES.items() if value == code)
    at = 34
    lengths = np.frombuffer(index, np.int32, sequences, at)
    pointers = np.frombuffer(index, np.int64, sequences, at + 4 * sequences)
    documents = np.frombuffer(index, np.int64, entries, at + 12 * sequences)
    assert len(index) == at + 12 * sequences + 8 * entries
    ids = [
        np.frombuffer(data, dtype, length, pointer).tolist()
        for length, pointer in zip(lengths, pointers)
    ]
    return dtype, [sum(ids[a:b], []) for a, b in zip(documents, documents[1:])]
