"""What all parsers share: their result, and the repair of text that is not valid Unicode."""

import re
from typing import NamedTuple

import pyarrow as pa

from dataprep.ledger import TaskLedger

_SURROGATE = re.compile("[\ud800-\udfff]")


class Parsed(NamedTuple):
    """What some records of a split became."""

    batch: pa.RecordBatch
    records: int
    """Records read: good, bad and blank ones."""
    bad: int = 0
    first_bad: str = ""
    """Where the first bad one stands, and what is wrong with it."""


def decode(raw: bytes, ledger: TaskLedger) -> str:
    """UTF-8 to str; undecodable bytes become U+FFFD and the document is counted."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        ledger.count("notes.read.documents_with_bad_bytes")
        return raw.decode("utf-8", "replace")


def to_arrow(texts: list[str], ledger: TaskLedger) -> pa.Array:
    """large_string array; lone surrogates (legal in JSON, not in UTF-8) become U+FFFD."""
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:
        fixed = [_SURROGATE.sub("\ufffd", t) for t in texts]
        ledger.count(
            "notes.read.documents_with_surrogates",
            sum(a != b for a, b in zip(texts, fixed, strict=True)),
        )
        return pa.array(fixed, pa.large_string())
