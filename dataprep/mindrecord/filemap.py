"""A file in memory, read only, without an open file behind it."""

import ctypes
import mmap
import os
import weakref
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class FileMap:
    """The bytes of a file, by address.

    Python's own `mmap` keeps a descriptor a map, and 4,096 shards are more than the 1,024 that a
    process may usually open; this one keeps none. It is unmapped when the last reference to the
    object goes, so whoever reads at `address` holds the object meanwhile, and nobody else need
    know.
    """

    address: int
    size: int

    def __init__(self, file: BinaryIO) -> None:
        """Maps all of an open file, which may be closed then. Raises OSError."""
        self.size = os.fstat(file.fileno()).st_size
        address = _libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address is None or address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.address = address
        # Not at exit: a thread may still be reading then, and the system tidies up.
        weakref.finalize(self, _libc.munmap, address, self.size).atexit = False

    def array(self) -> npt.NDArray[np.uint8]:
        """All bytes, without a copy, read only; the file stays mapped as long as a view of it."""
        buffer: Any = (ctypes.c_uint8 * self.size).from_address(self.address)
        buffer.owner = self  # the view keeps the buffer, and the buffer keeps us
        return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)

    def content(self, start: int, stop: int) -> bytes:
        """A copy of the bytes start..stop-1, 0 <= start <= stop <= size."""
        assert 0 <= start <= stop <= self.size
        return ctypes.string_at(int(self.address + start), int(stop - start))
