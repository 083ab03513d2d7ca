"""Parquet: one row a document, its text in one string column."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.batch import make_batch
from dataprep.errors import UserError
from dataprep.ledger import TaskLedger
from dataprep.readers.records import Parsed, decode, to_arrow
from dataprep.readers.splits import MIB, Split, open_parquet

BATCH_ROWS = 1024
BATCH_BYTES = 16 * MIB  # of all columns: fewer rows a batch where they are long


def read_row_groups(
    split: Split, index: int, max_bytes: int, ledger: TaskLedger
) -> Iterator[Parsed]:
    """Documents of the split's row groups. Null texts are removed as missing.

    Raises UserError when the file is damaged or has no string column of that name.
    """
    path, key = split.file.path, split.file.text_key
    row = 0
    try:
        with open_parquet(path) as parquet:
            _check_column(parquet.schema_arrow, path, key)
            for group in range(split.start, split.stop):
                rows = _batch_rows(parquet.metadata.row_group(group))
                for batch in parquet.iter_batches(rows, [group], [key], use_threads=False):
                    yield _documents(batch.column(0), index, row, max_bytes, ledger)
                    row += batch.num_rows
    except (pa.ArrowException, OSError) as e:
        raise UserError(f"{path} is not a readable Parquet file: {e}") from e


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """How many rows to hold at a time."""
    fit = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
    return max(1, min(BATCH_ROWS, fit))


def _check_column(schema: pa.Schema, path: str, key: str) -> None:
    if schema.names.count(key) != 1:
        names = ", ".join(repr(n) for n in schema.names[:12])
        have = "several columns" if key in schema.names else "no column"
        raise UserError(f"{path} has {have} {key!r}; set text_key to one of: {names}")
    kind = schema.field(key).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(
            f"column {key!r} of {path} has type {kind}, not string; choose another text_key"
        )


def _documents(
    column: pa.Array, split: int, first_row: int, max_bytes: int, ledger: TaskLedger
) -> Parsed:
    rows = np.arange(first_row, first_row + len(column))
    ledger.count("documents.read", len(column))
    text = column.cast(pa.large_string())
    missing = np.asarray(text.is_null())
    ledger.remove(split, rows[missing], "read", "missing_text")
    size = np.asarray(pc.fill_null(pc.binary_length(text), 0))
    long = size > max_bytes
    ledger.remove(split, rows[long], "read", "too_long", size[long], max_bytes)
    keep = ~(missing | long)
    bad = rows[~keep]
    text, rows = text.filter(pa.array(keep)), rows[keep]
    try:
        text.validate(full=True)  # a damaged file may hold bytes that are not UTF-8
    except pa.ArrowInvalid:
        raw = text.cast(pa.large_binary()).to_pylist()
        text = to_arrow([decode(b, ledger) for b in raw], ledger)
    batch = make_batch(split, rows, text)
    if not len(bad):
        return Parsed(batch, len(column))
    cause = "null" if missing[bad[0] - first_row] else "over max_document_mib"
    return Parsed(batch, len(column), len(bad), f"row {bad[0] + 1}: the text is {cause}")
