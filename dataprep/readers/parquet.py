"""Parquet: one row a document, its text in one string column."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.batch import make_batch
from dataprep.errors import UserError
from dataprep.ledger import TaskLedger
from dataprep.readers.jsonl import decode, to_arrow
from dataprep.readers.splits import Split

BATCH_ROWS = 1024


def read_row_groups(
    split: Split, index: int, max_bytes: int, ledger: TaskLedger
) -> Iterator[pa.RecordBatch]:
    """Documents of the split's row groups. Null texts are removed as missing.

    Raises UserError when the file is damaged or has no string column of that name.
    """
    path, key = split.file.path, split.file.text_key
    row = 0
    try:
        with pq.ParquetFile(path) as parquet:
            _check_column(parquet.schema_arrow, path, key)
            groups = list(range(split.start, split.stop))
            for batch in parquet.iter_batches(BATCH_ROWS, groups, columns=[key], use_threads=False):
                yield _documents(batch.column(0), index, row, max_bytes, ledger)
                row += batch.num_rows
        ledger.records[index] = row
    except (pa.ArrowException, OSError) as e:
        raise UserError(f"{path} is not a readable Parquet file: {e}") from e


def _check_column(schema: pa.Schema, path: str, key: str) -> None:
    if key not in schema.names:
        names = ", ".join(repr(n) for n in schema.names[:12])
        raise UserError(f"{path} has no column {key!r}; set text_key to one of: {names}")
    kind = schema.field(key).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(
            f"column {key!r} of {path} has type {kind}, not string; choose another text_key"
        )


def _documents(
    column: pa.Array, split: int, first_row: int, max_bytes: int, ledger: TaskLedger
) -> pa.RecordBatch:
    rows = np.arange(first_row, first_row + len(column))
    ledger.count("documents.read", len(column))
    text = column.cast(pa.large_string())
    missing = np.asarray(text.is_null())
    ledger.remove(split, rows[missing], "read", "missing_text")
    size = np.asarray(pc.fill_null(pc.binary_length(text), 0))
    long = size > max_bytes
    ledger.remove(split, rows[long], "read", "too_long", size[long], max_bytes)
    keep = ~(missing | long)
    text, rows = text.filter(pa.array(keep)), rows[keep]
    try:
        text.validate(full=True)  # a damaged file may hold bytes that are not UTF-8
    except pa.ArrowInvalid:
        raw = text.cast(pa.large_binary()).to_pylist()
        text = to_arrow([decode(b, ledger) for b in raw], ledger)
    return make_batch(split, rows, text)
