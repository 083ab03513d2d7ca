"""One row of any MindRecord file to Python values: plain and careful, where `decode` is fast.

A raw row is a msgpack map of the row's numbers and strings. A blob row holds its arrays and bytes:
one field alone is the whole of it, several have a uint64 BE length each. Integers are in the widths
of `encode` (and code 3 = int64), floats and bytes as they are, LE.
"""

from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from dataprep.mindrecord.encode import PREFIX
from dataprep.mindrecord.header import Field

Value = int | float | str | bytes | npt.NDArray[Any]


def row_values(schema: Mapping[str, Field], raw: bytes, blob: bytes) -> dict[str, Value]:
    """The fields of a row, in the order of `schema`, from its raw and blob part, without prefixes.

    Raises ValueError, naming the field, when the bytes are not a row of this schema.
    """
    scalars = raw_values(schema, raw)
    blobs = _split(blob, [name for name, what in schema.items() if what.is_blob])
    row: dict[str, Value] = {}
    for name, what in schema.items():
        try:
            row[name] = _blob_value(what, blobs[name]) if what.is_blob else scalars[name]
        except ValueError as e:
            raise ValueError(f"field {name!r}: {e}") from e
    return row


def raw_values(schema: Mapping[str, Field], raw: bytes) -> dict[str, int | float | str]:
    """The numbers and strings of a row. Raises ValueError as row_values."""
    names = [name for name, what in schema.items() if not what.is_blob]
    if not names:
        return {}
    try:
        found = msgpack.unpackb(raw)
    except (ValueError, msgpack.UnpackException) as e:  # of cut or strange bytes: no text
        raise ValueError(f"its numbers and strings are not msgpack ({e!r})") from e
    if not isinstance(found, dict) or sorted(map(str, found)) != names:
        raise ValueError(f"its numbers and strings are not {names}")
    return {name: _scalar(name, schema[name].type, found[name]) for name in names}


def _scalar(name: str, kind: str, value: Any) -> int | float | str:
    if kind == "string" and isinstance(value, str):
        return value
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if kind in ("float32", "float64") and (is_int or isinstance(value, float)):
        return float(value)
    if is_int and kind in ("int32", "int64") and abs(value) <= np.iinfo(kind).max + (value < 0):
        return int(value)
    raise ValueError(f"field {name!r}: {str(value)[:50]!r} is no {kind}")


def _split(blob: bytes, names: list[str]) -> dict[str, bytes]:
    """The bytes of each field of a blob row."""
    if len(names) <= 1:  # without any, four bytes that mean nothing
        return dict.fromkeys(names, blob)
    parts, at = {}, 0
    for name in names:
        start = at + PREFIX
        at = start + int.from_bytes(blob[at:start], "big")
        if at > len(blob):
            break
        parts[name] = blob[start:at]
    if len(parts) < len(names) or at != len(blob):
        raise ValueError(f"its arrays are not {names}")
    return parts


def _blob_value(what: Field, data: bytes) -> bytes | npt.NDArray[Any]:
    if what.shape is None:
        return data
    dtype = np.dtype(what.type)
    if dtype.kind == "i":
        values = _integers(data, dtype)
    elif len(data) % dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are no {dtype} array")
    else:
        values = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
    shape = what.shape
    if values.size == 0 and -1 in shape:
        shape = tuple(0 if n == -1 else n for n in shape)
    return values.reshape(shape)  # ValueError when it does not fit


def _integers(data: bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The elements of a compressed int32 or int64 array."""
    count = int.from_bytes(data[:4], "big")
    elements = 4 + (count + 3) // 4
    if len(data) < elements:
        raise ValueError(f"{len(data)} bytes are too few for {count:,} elements")
    codes = np.frombuffer(data, np.uint8, elements - 4, 4)[:, None] >> np.array([6, 4, 2, 0]) & 3
    widths = np.left_shift(1, codes.reshape(-1)[:count].astype(np.int64))
    ends = np.cumsum(widths)
    if widths.max(initial=0) > dtype.itemsize or len(data) - elements != widths.sum():
        raise ValueError("its width codes do not match its bytes")
    body = np.frombuffer(data, np.uint8, offset=elements)
    values = np.empty(count, dtype)
    for width in (1, 2, 4, 8):
        (these,) = np.nonzero(widths == width)
        parts = body[ends[these, None] - width + np.arange(width)]
        values[these] = parts.reshape(-1).view(f"<i{width}")
    return values
