"""Rows to bytes and back: by eye, then against plain Python."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.mindrecord.encode import decode_rows, encode_rows, row_sizes
from dataprep.mindrecord.layout import row_bytes

FIELD = "00000004 09 01 9c 409c0000 2c01"  # count, codes, 1, -100, 40000, 300
CASES = {
    "one column": ([[1, -100, 40_000, 300]], "0d00000000000000" + FIELD),
    "two columns": (
        [[7], [1, -100, 40_000, 300]],
        "2300000000000000 0000000000000006 00000001 00 07 000000000000000d" + FIELD,
    ),
    "edges of the widths": (
        [[127, 128, -128, -129, 32_767, 32_768, -32_768, -32_769]],
        "1800000000000000 00000008 11 66 7f 8000 80 7fff ff7f 00800000 0080 ff7fffff",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_literal_rows(name: str) -> None:
    fields, expected = CASES[name]
    columns = [np.array([field], np.int32) for field in fields]
    assert encode(columns)[0].tobytes().hex(" ") == bytes.fromhex(expected).hex(" ")


int32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-300, 300), st.just(-100))


@st.composite
def blocks(draw: st.DrawFn) -> list[np.ndarray]:
    rows = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 11), min_size=1, max_size=3))
    row = [st.lists(int32, min_size=n, max_size=n) for n in lengths]
    return [np.array([draw(r) for _ in range(rows)], np.int32) for r in row]


@settings(deadline=None, max_examples=200)
@given(blocks())
def test_any_block_equals_the_reference_and_comes_back(columns: list[np.ndarray]) -> None:
    out, offsets = encode(columns)
    rows = [out[a:b].tobytes() for a, b in zip(offsets, offsets[1:])]
    assert rows == [reference_row([c[i].tolist() for c in columns]) for i in range(len(rows))]
    assert max(map(len, rows)) <= row_bytes({str(i): c.shape[1] for i, c in enumerate(columns)})
    back = decode_rows(out, offsets[:-1], offsets[1:], [c.shape[1] for c in columns])
    for got, want in zip(back, columns):
        np.testing.assert_array_equal(got, want)


@settings(deadline=None, max_examples=200)
@given(blocks(), st.data())
def test_a_damaged_row_is_an_error_or_other_values_but_never_a_wild_read(
    columns: list[np.ndarray], data: st.DataObject
) -> None:
    out, offsets = encode(columns)
    damaged = out.copy()
    damaged[data.draw(st.integers(0, len(out) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = damaged[: data.draw(st.sampled_from([len(out), len(out) - 1]))]
    try:
        back = decode_rows(damaged, offsets[:-1], offsets[1:], [c.shape[1] for c in columns])
    except ValueError:
        return
    assert [b.shape for b in back] == [c.shape for c in columns]


def test_bytes_behind_the_last_row_stay_untouched() -> None:
    columns = [np.array([[1, 2, 3], [4, 5, 6]], np.int32)]
    sizes = row_sizes(columns)
    out = np.full(int(sizes.sum()) + 4, 0xEE, np.uint8)
    encode_rows(columns, sizes, out)
    assert out[-4:].tolist() == [0xEE] * 4


def test_a_buffer_that_is_too_small_is_refused() -> None:
    columns = [np.array([[1, 2, 3]], np.int32)]
    with pytest.raises(ValueError, match="do not fit a buffer of 15"):
        encode_rows(columns, row_sizes(columns), np.empty(15, np.uint8))


def encode(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    sizes = row_sizes(columns)
    out = np.zeros(int(sizes.sum()), np.uint8)
    return out, encode_rows(columns, sizes, out)


def reference_row(fields: list[list[int]]) -> bytes:
    encoded = [reference_field(field) for field in fields]
    if len(encoded) > 1:
        encoded = [struct.pack(">Q", len(f)) + f for f in encoded]
    blob = b"".join(encoded)
    return struct.pack("<Q", len(blob)) + blob


def reference_field(values: list[int]) -> bytes:
    codes = [
        next(c for c in range(3) if -(2 ** (8 * 2**c - 1)) <= v < 2 ** (8 * 2**c - 1))
        for v in values
    ]
    bits = "".join(f"{c:02b}" for c in codes)
    bits += "0" * (-len(bits) % 8)
    packed = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    elements = b"".join(v.to_bytes(2**c, "little", signed=True) for v, c in zip(values, codes))
    return struct.pack(">I", len(values)) + packed + elements
