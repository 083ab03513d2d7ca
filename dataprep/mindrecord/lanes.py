"""Blocks of 32 integers as LLVM vectors, for kernels: what plain loops do not compile to.

Memory is named by its address, for one call of a kernel works on rows of many files and arrays of
many columns. **Nothing here checks bounds**: the callers (`encode`, `decode`) do, and they keep the
memory alive. All arguments and results are int64.

The vectors are LLVM's own, of no processor in particular, and LLVM turns a shuffle whose indices
come from memory into one instruction where the host has it (`pshufb` of x86, `tbl` of ARM).
Little-endian hosts only, like MindSpore's.

A *code word* is eight code bytes of a field (see `encode`) as they lie in the file: the widths of
32 integers. Its lowest byte has those of the first *quad*, four integers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 32  # integers in a code word
# Code words of integers that all have the same width.
ALL_INT8, ALL_INT16, ALL_INT32 = np.array([0x00, 0x55, 0xAA], np.uint8).repeat(8).view(np.int64)


def _tables() -> tuple[npt.NDArray[Any], ...]:
    """Of every code byte: size of its quad in bytes; shuffles from and to the file; shifts.

    The shuffle from the file puts an element of w bytes into the *high* bytes of its int32. Then a
    shift to the right by 32 - 8 w bits extends the sign and drops what lies in the low bytes.
    """
    sizes, shifts = np.zeros(256, np.int64), np.zeros((256, 4), np.int32)
    spread, gather = np.zeros((256, 16), np.uint8), np.zeros((256, 16), np.uint8)
    for code in range(256):
        at = 0
        for k in range(4):
            width = 1 << (code >> (6 - 2 * k) & 3)
            if width > 4:  # code 3 has no entry: see `decode`
                break
            spread[code, 4 * k + 4 - width : 4 * k + 4] = at + np.arange(width)
            gather[code, at : at + width] = 4 * k + np.arange(width)
            shifts[code, k] = 32 - 8 * width
            at += width
        sizes[code] = at
    return sizes, spread, gather, shifts


QUAD_SIZES, SPREAD, GATHER, SHIFTS = _tables()  # a kernel takes the address of an entry

_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_BYTES, _QUAD = ir.VectorType(_BYTE, 16), ir.VectorType(_INT, 4)


def _function(emit: Callable[..., Any]) -> Any:
    """A function for kernels; `emit(builder, *arguments)` builds its LLVM code."""
    long = types.int64
    result = types.void if emit.__annotations__["return"] is None else long

    def build(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        value = emit(b, *arguments)
        return context.get_dummy_value() if value is None else value

    def define1(context: Any, a: Any) -> Any:
        return result(long), build

    def define2(context: Any, a: Any, b: Any) -> Any:
        return result(long, long), build

    def define3(context: Any, a: Any, b: Any, c: Any) -> Any:
        return result(long, long, long), build

    def define4(context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return result(long, long, long, long), build

    define = {2: define1, 3: define2, 4: define3, 5: define4}[emit.__code__.co_argcount]
    define.__name__ = define.__qualname__ = emit.__name__
    return intrinsic(define)


def _load(b: Any, address: Any, kind: Any) -> Any:
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 1  # rows lie anywhere
    return value


def _store(b: Any, value: Any, address: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 1


def _shuffle(b: Any, source: Any, table: Any) -> Any:
    """Byte k of the result is byte table[k] of `source`."""
    indices = _load(b, table, _BYTES)
    result = ir.Constant(_BYTES, ir.Undefined)
    for k in range(16):
        byte = b.extract_element(source, b.extract_element(indices, _INT(k)))
        result = b.insert_element(result, byte, _INT(k))
    return result


@_function
def load_byte(b: Any, source: Any) -> Any:
    """The uint8 there."""
    return b.zext(_load(b, source, _BYTE), _LONG)


@_function
def load_int(b: Any, source: Any) -> Any:
    """The int32 there."""
    return b.sext(_load(b, source, _INT), _LONG)


@_function
def load_long(b: Any, source: Any) -> Any:
    """The int64 there; a code word, or a row's length."""
    return _load(b, source, _LONG)


@_function
def load_big_int(b: Any, source: Any) -> Any:
    """The big-endian uint32 there."""
    return b.zext(b.bswap(_load(b, source, _INT)), _LONG)


@_function
def load_big_long(b: Any, source: Any) -> Any:
    """The big-endian int64 there."""
    return b.bswap(_load(b, source, _LONG))


@_function
def store_byte(b: Any, value: Any, target: Any) -> None:
    """Writes the lowest byte."""
    _store(b, b.trunc(value, _BYTE), target)


@_function
def store_int(b: Any, value: Any, target: Any) -> None:
    """Writes the lowest four bytes."""
    _store(b, b.trunc(value, _INT), target)


@_function
def store_long(b: Any, value: Any, target: Any) -> None:
    """Writes all eight bytes."""
    _store(b, value, target)


@_function
def store_big_int(b: Any, value: Any, target: Any) -> None:
    """Writes the lowest four bytes, the highest of them first."""
    _store(b, b.bswap(b.trunc(value, _INT)), target)


@_function
def store_big_long(b: Any, value: Any, target: Any) -> None:
    """Writes all eight bytes, the highest first."""
    _store(b, b.bswap(value), target)


@_function
def prefetch(b: Any, address: Any) -> None:
    """Asks for the cache line at an address, which may be any."""
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [b.inttoptr(address, pointer), _INT(0), _INT(3), _INT(1)])


def _widen(kind: Any) -> Any:
    @_function
    def widen(b: Any, source: Any, target: Any) -> None:
        """32 signed integers of a width at `source` to int32 at `target`."""
        block = _load(b, source, ir.VectorType(kind, BLOCK))
        _store(b, block if kind is _INT else b.sext(block, ir.VectorType(_INT, BLOCK)), target)

    return widen


def _narrow(kind: Any) -> Any:
    @_function
    def narrow(b: Any, source: Any, target: Any) -> None:
        """32 int32 at `source` to integers of a width at `target`."""
        block = _load(b, source, ir.VectorType(_INT, BLOCK))
        _store(b, block if kind is _INT else b.trunc(block, ir.VectorType(kind, BLOCK)), target)

    return narrow


widen8, widen16, widen32 = _widen(_BYTE), _widen(_SHORT), _widen(_INT)
narrow8, narrow16, narrow32 = _narrow(_BYTE), _narrow(_SHORT), _narrow(_INT)


@_function
def widen_quad(b: Any, source: Any, target: Any, spread: Any, shifts: Any) -> None:
    """A quad to four int32; takes the entries of SPREAD and SHIFTS. Reads 16 bytes at `source`."""
    quad = b.bitcast(_shuffle(b, _load(b, source, _BYTES), spread), _QUAD)
    _store(b, b.ashr(quad, _load(b, shifts, _QUAD)), target)


@_function
def narrow_quad(b: Any, source: Any, target: Any, gather: Any) -> None:
    """Four int32 to a quad; takes the entry of GATHER. Writes 16 bytes at `target`."""
    _store(b, _shuffle(b, _load(b, source, _BYTES), gather), target)


@_function
def code_word(b: Any, source: Any) -> Any:
    """The code word of 32 int32."""
    block = _load(b, source, ir.VectorType(_INT, BLOCK))
    codes = []
    for kind in (_BYTE, _SHORT):
        cut = b.sext(b.trunc(block, ir.VectorType(kind, BLOCK)), block.type)
        codes.append(b.zext(b.icmp_signed("!=", cut, block), ir.VectorType(_BYTE, BLOCK)))
    code = b.add(*codes)
    word = None
    for k in range(4):  # elements k, k + 4, k + 8 ... are the k-th of their quads
        places = ir.Constant(ir.VectorType(_INT, 8), list(range(k, BLOCK, 4)))
        part = b.shuffle_vector(code, ir.Constant(code.type, ir.Undefined), places)
        part = b.shl(part, ir.Constant(part.type, [6 - 2 * k] * 8))
        word = part if word is None else b.or_(word, part)
    return b.bitcast(word, _LONG)
