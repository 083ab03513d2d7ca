"""Plain text: each line is a document, or each file is."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from dataprep.batch import make_batch, text_array
from dataprep.ledger import TaskLedger
from dataprep.readers.blocks import Block
from dataprep.readers.records import Parsed, decode, to_arrow

_LF = 10


def parse_lines(data: bytes, split: int, first_row: int, ledger: TaskLedger) -> Parsed:
    """Each line of a block as a document.

    An empty line is an (empty) document: cleaning removes it under that name.
    """
    if not data:
        return Parsed(make_batch(split, [], pa.array([], pa.large_string())), 0)
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
    rows = np.arange(first_row, first_row + len(text))
    return Parsed(make_batch(split, rows, text), len(text))


def parse_file(blocks: Iterable[Block], split: int, max_bytes: int, ledger: TaskLedger) -> Parsed:
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
        none = make_batch(split, [], pa.array([], pa.large_string()))
        return Parsed(none, 1, 1, f"{size:,} bytes, over max_document_mib")
    text = to_arrow([decode(b"".join(parts), ledger)], ledger)
    return Parsed(make_batch(split, [0], text), 1)
