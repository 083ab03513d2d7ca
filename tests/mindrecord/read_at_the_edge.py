"""Decodes rows that end with the last byte of the memory there is: reading on ends the process.

python read_at_the_edge.py       prints how many rows were good, and how many damaged
"""

import ctypes
import mmap

import numpy as np

from dataprep.mindrecord.decode import DamagedRow, decode_rows
from dataprep.mindrecord.encode import encode_rows, most_bytes

ROOM = 1 << 16


def guarded() -> np.ndarray:
    """uint8 [ROOM] with a page behind it that nobody may touch."""
    memory = mmap.mmap(-1, ROOM + mmap.PAGESIZE)
    data = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(data.ctypes.data + ROOM), mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return data[:ROOM]


def main() -> None:
    """Rows of all lengths and widths, as they are and with one to three bytes changed."""
    rng = np.random.default_rng(0)
    memory, good, bad = guarded(), 0, 0
    for length in [*range(1, 71), 300, 2049]:
        for shift in (0, 8, 17, 24, 28):
            values = rng.integers(-(2**31), 2**31, (1, length)) >> shift
            columns = [values.astype(np.int32)] * int(rng.integers(1, 3))
            buffer = np.empty(most_bytes([length] * len(columns)), np.uint8)
            row = buffer[: encode_rows(columns, buffer)[-1]]
            for damage in range(6):
                place = memory[ROOM - len(row) :]
                place[:] = row
                if damage:
                    where = rng.integers(8, len(row), rng.integers(1, 4))
                    place[where] = rng.choice([0x00, 0x55, 0xAA, 0xFF, 0x0C, 0x30], len(where))
                at = np.array([place.ctypes.data])
                target = [np.empty((1, length), np.int32) for _ in columns]
                try:
                    decode_rows(at, at + len(row), list(target))
                    good += 1
                except DamagedRow:
                    bad += 1
    print(good, bad)


if __name__ == "__main__":
    main()
