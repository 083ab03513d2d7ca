"""Rows to bytes and back: by eye, then against plain Python, then damaged in every way."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataprep
from dataprep.mindrecord.decode import DamagedRow, decode_rows
from dataprep.mindrecord.encode import encode_rows, most_bytes
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
    "a block of int8, then one more": (
        [[-1] * 33],
        "2e00000000000000 00000021" + "00" * 9 + "ff" * 33,
    ),
    "a block of int16, and of int32": (
        [[256] * 32 + [-(1 << 31)] * 32],
        "d400000000000000 00000040" + "55" * 8 + "aa" * 8 + "0001" * 32 + "00000080" * 32,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_literal_rows(name: str) -> None:
    fields, expected = CASES[name]
    columns = [np.array([field], np.int32) for field in fields]
    out, offsets = encode(columns)
    assert out.tobytes().hex(" ") == bytes.fromhex(expected).hex(" ")
    for got, field in zip(decode(out, offsets, [len(f) for f in fields]), fields):
        assert got.tolist() == [field]


# Runs, because blocks of 32 elements of one width go another way than mixed ones.
WIDTHS = ((-128, 127), (-(2**15), 2**15 - 1), (-(2**31), 2**31 - 1))
number = st.one_of(*[st.integers(*limits) for limits in WIDTHS], st.sampled_from([-129, 128]))
run = st.tuples(number, st.integers(1, 40))


@st.composite
def blocks(draw: st.DrawFn) -> list[np.ndarray]:
    """Up to three columns of up to four rows, of arrays of 1 to 70 elements of all widths."""
    rows = draw(st.integers(1, 4))
    columns = []
    for length in draw(st.lists(st.integers(1, 70), min_size=1, max_size=3)):
        runs = draw(st.lists(run, min_size=1, max_size=12))
        values = np.repeat([v for v, _ in runs], [n for _, n in runs])
        start = draw(st.integers(0, 69))  # else all rows would begin alike
        columns.append(np.resize(np.roll(values, start), (rows, length)).astype(np.int32))
    return columns


@settings(deadline=None, max_examples=300)
@given(blocks())
def test_any_block_equals_the_reference_and_comes_back(columns: list[np.ndarray]) -> None:
    out, offsets = encode(columns)
    rows = [out[a:b].tobytes() for a, b in zip(offsets, offsets[1:])]
    assert rows == [reference_row([c[i].tolist() for c in columns]) for i in range(len(rows))]
    assert max(map(len, rows)) <= row_bytes({str(i): c.shape[1] for i, c in enumerate(columns)})
    for got, want in zip(decode(out, offsets, [c.shape[1] for c in columns]), columns):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("length", range(1, 71))
def test_every_length_and_mix_of_widths(length: int) -> None:
    rng = np.random.default_rng(length)
    values = rng.integers(-(2**31), 2**31, (60, length)) >> rng.integers(0, 31, (60, length))
    values[:20] = rng.integers(-200, 200, (20, length))  # mostly int8, a few int16
    values[20:40] = rng.integers(100, 32_000, (20, length))  # mostly int16, a few int8
    columns = [values.astype(np.int32)]
    out, offsets = encode(columns)
    assert out.tobytes() == b"".join(reference_row([row]) for row in values.tolist())
    np.testing.assert_array_equal(decode(out, offsets, [length])[0], columns[0])


@settings(deadline=None, max_examples=300)
@given(blocks(), st.data())
def test_a_damaged_row_is_read_as_the_reference_reads_it(
    columns: list[np.ndarray], data: st.DataObject
) -> None:
    """Flipped, lost or made-up bytes: the same values as plain Python's, or an error for both."""
    out, offsets = encode(columns)
    row = data.draw(st.integers(0, len(offsets) - 2))
    damaged = bytearray(out[offsets[row] : offsets[row + 1]])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    kind = data.draw(st.sampled_from(["flipped", "cut", "longer", "random"]))
    if kind == "cut":
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    elif kind == "longer":
        damaged += data.draw(st.binary(min_size=1, max_size=20))
    elif kind == "random":
        damaged[8:] = data.draw(st.binary(min_size=len(damaged) - 8, max_size=len(damaged) - 8))
    if data.draw(st.booleans()):  # or nothing but the first check would ever fail
        damaged[:8] = struct.pack("<Q", max(0, len(damaged) - 8))
    lengths = [c.shape[1] for c in columns]
    expected = reference_decode(bytes(damaged), lengths)
    buffer = np.frombuffer(bytes(damaged), np.uint8)
    try:
        got = decode(buffer, np.array([0, len(buffer)]), lengths)
    except DamagedRow as e:
        assert e.row == 0 and expected is None
    else:
        assert [values[0].tolist() for values in got] == expected


def test_the_first_damaged_row_is_named() -> None:
    columns = [np.arange(40 * 50, dtype=np.int32).reshape(40, 50)]
    out, offsets = encode(columns)
    out[offsets[[17, 30]] + 20] = 0xFF
    with pytest.raises(DamagedRow, match=r"arrays of lengths \[50\]") as error:
        decode(out, offsets, [50])
    assert error.value.row == 17


def test_fields_that_are_not_wanted_are_skipped() -> None:
    columns = [np.full((3, n), n, np.int32) for n in (40, 5, 7)]
    out, offsets = encode(columns)
    target = np.zeros((3, 5), np.int32)
    base = out.ctypes.data + offsets
    decode_rows(base[:-1], base[1:], [None, target, None])
    assert target.tolist() == [[5] * 5] * 3
    out[8:16] = 0xFF  # the first field's length, in row 0
    with pytest.raises(DamagedRow):
        decode_rows(base[:-1], base[1:], [None, target, None])


def test_nothing_is_read_past_the_end() -> None:
    """In a process of its own: rows whose last byte is the last of the memory, of any damage."""
    program = Path(__file__).with_name("read_at_the_edge.py")
    root = Path(dataprep.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(program)],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    good, bad = map(int, done.stdout.split())
    assert good >= 1_000 and bad >= 500


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="may not fit a buffer of 24 bytes"):
        encode_rows([np.array([[1, 2, 3]], np.int32)], np.empty(24, np.uint8))


@pytest.mark.parametrize(
    "column",
    [np.zeros((2, 3), np.int64), np.zeros((1, 3), np.int32), np.zeros((2, 6), np.int32)[:, ::2]],
)
def test_other_arrays_are_refused(column: np.ndarray) -> None:
    good = np.zeros((2, 3), np.int32)
    with pytest.raises(ValueError, match="not int32 arrays of equal rows"):
        encode_rows([good, column], np.empty(1_000, np.uint8))
    places = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="2 rows do not go into"):
        decode_rows(places, places, [good, column])


def encode(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Encoded rows and their offsets; checks that nothing behind the promised room is touched."""
    room = len(columns[0]) * most_bytes([c.shape[1] for c in columns])
    out = np.full(room + 64, 0xEE, np.uint8)
    offsets = encode_rows(columns, out[:room])
    assert (out[room:] == 0xEE).all()
    return out[: offsets[-1]], offsets


def decode(data: np.ndarray, offsets: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    columns = [np.zeros((len(offsets) - 1, length), np.int32) for length in lengths]
    places = data.ctypes.data + offsets
    decode_rows(places[:-1], places[1:], columns)
    return columns


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


def reference_decode(row: bytes, lengths: list[int]) -> list[list[int]] | None:
    """The arrays of a row, or None when its bytes are not exactly arrays of these lengths."""
    if len(row) < 8 or int.from_bytes(row[:8], "little") != len(row) - 8:
        return None
    fields, at = [], 8
    for length in lengths:
        size = len(row) - at
        if len(lengths) > 1:
            size = int.from_bytes(row[at : at + 8], "big")
            at += 8
        field = row[at : at + size]
        at += size
        values = reference_array(field, length) if at <= len(row) else None
        if values is None:
            return None
        fields.append(values)
    return fields if at == len(row) else None


def reference_array(field: bytes, length: int) -> list[int] | None:
    body = 4 + (length + 3) // 4
    if len(field) < body or int.from_bytes(field[:4], "big") != length:
        return None
    values = []
    for i in range(length):
        width = 1 << (field[4 + i // 4] >> (6 - 2 * (i % 4)) & 3)
        if width > 4 or body + width > len(field):
            return None
        values.append(int.from_bytes(field[body : body + width], "little", signed=True))
        body += width
    return values if body == len(field) else None
