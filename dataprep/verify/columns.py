"""The columns of a block of rows, computed again from its ids and pieces.

This judges `dataprep.pack` and so shares no code with it. For S = 6, documents [1,2] and
[3,4,5,6,7], of which the 7 stands in another row, isolated:

    input_ids       1    2    3    4    5    6 (  7)   S, or S + 1: then the token that follows
    labels          2 -100    4    5    6    7         S: the next token of the same document
    labels       -100    2 -100    4    5    6    7    S + 1: a target keeps its own place
    loss_mask       1    0    1    1    1    1
    position_ids    0    1    0    1    2    3         not isolated: 0 1 2 3 4 5
    actual_seq_len  2    6    6 ...                    ends of the pieces, then S
    segments        2    5    0 ...                    lengths of the pieces; not isolated: 7
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
IGNORE = -100  # the label of a slot that trains nothing, for MindSpore and MindFormers

OUTSIDE, SPECIAL, EDGE, PADDING = range(4)  # what judge_ids finds
SHIFTED = ("input_ids", "labels", "loss_mask", "position_ids")


class Places(NamedTuple):
    """The pieces of a block, in the order of its slots. Arrays of p."""

    row: Ints
    """In the block."""
    start: Int32
    length: Int32
    opens: npt.NDArray[np.bool_]
    """It begins its document."""
    goes_on: npt.NDArray[np.bool_]
    """Its document goes on elsewhere."""


class Special(NamedTuple):
    """What ids may stand where."""

    vocab_size: int
    never: Int32
    """[3] Ids that no text can have made; -1, which is no id, where there are fewer."""
    pad: int
    bos: int
    """Every document's first id; -1: none of its own."""
    eos: int
    """Every document's last id; -1: none of its own."""


def preset_columns(preset: str, have: Mapping[str, int], s: int, isolated: bool) -> dict[str, int]:
    """The columns that a preset's name stands for: name -> length.

    The number of documents a row may hold is taken from the columns there are; 0: it is missing.
    """
    if preset == "legacy":
        return {"input_ids": s + 1}
    if preset == "legacy_labels":
        return {"input_ids": s + 1, "labels": s + 1}
    if preset == "compact":
        if isolated:
            return {"input_ids": s + 1, "segments": have.get("segments", 0)}
        return {"input_ids": s + 1, "loss_mask": s, "segments": 1}
    columns = dict.fromkeys(SHIFTED, s)
    if isolated:
        columns["actual_seq_len"] = have.get("actual_seq_len", 0)
    if preset == "custom":
        return {name: columns[name] for name in ("input_ids", *have) if name in columns}
    return columns if preset == "mindformers" else {}


def most_pieces(columns: Mapping[str, int], isolated: bool, s: int) -> int:
    """Documents that a row can hold, by the columns that tell their borders."""
    if not isolated:
        return s
    most = [columns[name] for name in ("actual_seq_len", "segments") if name in columns]
    return min(most, default=s)


def expected(name: str, length: int, ids: Int32, at: Places, s: int, isolated: bool) -> Int32:
    """Column `name` as it should be: int32 [n, length]. ids: int32 [n, S or S + 1].

    The last label of a piece that goes on is left out (IGNORE) when labels have S slots: its token
    may be in another block.
    """
    fill = {"labels": IGNORE, "actual_seq_len": s}.get(name, 0)
    out = np.full((len(ids), length), fill, np.int32)
    if name == "labels":
        (_labels if length == s else _labels_in_place)(ids, at, out)
    elif name == "loss_mask":
        _loss_mask(at, out)
    elif name == "position_ids":
        _position_ids(at, isolated, out)
    elif name == "actual_seq_len":
        _actual_seq_len(at, s, out)
    elif name == "segments":
        _segments(at, s, isolated, out)
    else:
        raise ValueError(f"no column {name!r} is known")
    return out


@njit(nogil=True, cache=True)
def judge_ids(ids: Int32, at: Places, s: int, special: Special) -> Ints:
    """Ids that cannot be: int64 [4, 3], how many and the row and slot of the first.

    ids: int32 [n, S or S + 1]. OUTSIDE of the vocabulary; SPECIAL ids inside of a document; an EDGE
    of a document that lacks its begin or end token; PADDING with another id than pad's.
    """
    faults = np.zeros((4, 3), np.int64)
    for p in range(len(at.row)):
        r, start, end = at.row[p], at.start[p], at.start[p] + at.length[p]
        stop = end
        if at.goes_on[p] and end == s and ids.shape[1] > s:
            stop = end + 1  # the extra token is one of the document's
        bos = special.bos >= 0 and at.opens[p]
        eos = special.eos >= 0 and not at.goes_on[p]
        first = start + 1 if bos else start
        last = max(end - 1, first) if eos else stop
        if bos and ids[r, start] != special.bos:
            _fault(faults, EDGE, r, start)
        if eos and ids[r, end - 1] != special.eos:
            _fault(faults, EDGE, r, end - 1)
        if _unusual(ids[r, first:last], special):
            for slot in range(first, last):
                token = ids[r, slot]
                if token < 0 or token >= special.vocab_size:
                    _fault(faults, OUTSIDE, r, slot)
                elif slot < end and (token == special.never).any():
                    _fault(faults, SPECIAL, r, slot)
        if p + 1 == len(at.row) or at.row[p + 1] != r:
            for slot in range(stop, ids.shape[1]):
                if ids[r, slot] != special.pad:
                    _fault(faults, PADDING, r, slot)
    return faults


@njit(nogil=True, cache=True)
def _unusual(tokens: Int32, special: Special) -> bool:
    """Whether one of some ids is out of range or special. It adds where it might stop, and so runs
    in vectors."""
    a, b, c = special.never[0], special.never[1], special.never[2]
    found = 0
    for i in range(len(tokens)):
        token = tokens[i]
        out = (token < 0) | (token >= special.vocab_size)
        found += out | (token == a) | (token == b) | (token == c)
    return found > 0


@njit(nogil=True, cache=True, inline="always")
def _fault(faults: Ints, kind: int, row: int, slot: int) -> None:
    if faults[kind, 0] == 0:
        faults[kind, 1], faults[kind, 2] = row, slot
    faults[kind, 0] += 1


@njit(nogil=True, cache=True)
def _labels(ids: Int32, at: Places, out: Int32) -> None:
    for p in range(len(at.row)):
        r, start, end = at.row[p], at.start[p], at.start[p] + at.length[p]
        out[r, start : end - 1] = ids[r, start + 1 : end]


@njit(nogil=True, cache=True)
def _labels_in_place(ids: Int32, at: Places, out: Int32) -> None:
    s = out.shape[1] - 1
    for p in range(len(at.row)):
        r, start, end = at.row[p], at.start[p], at.start[p] + at.length[p]
        stop = end + 1 if at.goes_on[p] and end == s else end
        out[r, start + 1 : stop] = ids[r, start + 1 : stop]


@njit(nogil=True, cache=True)
def _loss_mask(at: Places, out: Int32) -> None:
    for p in range(len(at.row)):
        end = at.start[p] + at.length[p]
        out[at.row[p], at.start[p] : end if at.goes_on[p] else end - 1] = 1


@njit(nogil=True, cache=True)
def _position_ids(at: Places, isolated: bool, out: Int32) -> None:
    for p in range(len(at.row)):
        r, start = at.row[p], at.start[p]
        zero = start if isolated else 0
        for slot in range(start, start + at.length[p]):
            out[r, slot] = slot - zero


@njit(nogil=True, cache=True)
def _actual_seq_len(at: Places, s: int, out: Int32) -> None:
    nth = 0  # of the piece in its row
    for p in range(len(at.row)):
        nth = nth + 1 if p > 0 and at.row[p] == at.row[p - 1] else 0
        if nth < out.shape[1] - 1:  # the last entry is always S
            out[at.row[p], nth] = at.start[p] + at.length[p]


@njit(nogil=True, cache=True)
def _segments(at: Places, s: int, isolated: bool, out: Int32) -> None:
    nth = 0
    for p in range(len(at.row)):
        nth = nth + 1 if isolated and p > 0 and at.row[p] == at.row[p - 1] else 0
        if nth < out.shape[1]:
            more = 1 if at.goes_on[p] and at.start[p] + at.length[p] == s else 0
            out[at.row[p], nth] += at.length[p] + more
