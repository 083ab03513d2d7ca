"""Plain text: each line is a document, or each file is."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from dataprep.batch import make_batch, text_array
from dataprep.ledger import TaskLedger
from dataprep.readers.blocks import Block
from dataprep.readers.jsonl import decode, to_arrow

_LF = 10


def parse_lines(
    data: bytes, split: int, first_row: int, ledger: TaskLedger
) -> tuple[pa.RecordBatch, int]:
    """Each line of a block as a document; returns the batch and the number of lines.

    An empty line is an (empty) document: cleaning removes it under that name.
    """
    if not data:
        return make_batch(split, [], pa.array([], pa.large_string())), 0
    data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        lines = [decode(line, ledger) for line in data[:-1].split(b"\n")]
        text = to_arrow(lines, ledger)
    else:
        flat = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(flat == _LF)
        # Dropping the LFs moves the end of line i forward by i.
        offsets = np.concatenate([[0], ends - np.arange(len(ends))])
        text = text_array(flat[flat != _LF], offsets.astype(np.int64))
    ledger.count("documents.read", len(text))
    return make_batch(split, np.arange(first_row, first_row + len(text)), text), len(text)


def parse_file(
    blocks: Iterable[Block], split: int, max_bytes: int, ledger: TaskLedger
) -> pa.RecordBatch:
    """A whole file as one document; one over max_bytes is removed as too long, with its size."""
    parts: list[bytes] = []
    size = 0
    for block in blocks:
        size += len(block.data) + block.overlong
        if size <= max_bytes:
            parts.append(block.data)
    ledger.count("documents.read")
    if size > max_bytes:
        ledger.remove(split, 0, "read", "too_long", size, max_bytes)
        return make_batch(split, [], pa.array([], pa.large_string()))
    text = to_arrow([decode(b"".join(parts), ledger)], ledger)
    return make_batch(split, [0], text)
