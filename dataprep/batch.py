"""The form in which documents travel: Arrow record batches, one row a document.

    split  int32         which split of the run (0-based, in input order)
    row    int64         record number within that split (0-based)
    text   large_string  valid UTF-8

(split, row) is a document's identity inside a pass; `corpus.plan` turns it into (file, row of the
file) once the splits' record counts are known. Kernels see `text` as two flat arrays:

    data     uint8[n]    all bytes of all documents
    offsets  int64[d+1]  document i is data[offsets[i]:offsets[i+1]]
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

DOCUMENTS = pa.schema([("split", pa.int32()), ("row", pa.int64()), ("text", pa.large_string())])


def make_batch(
    split: int, rows: Sequence[int] | npt.NDArray[np.int64], text: pa.Array
) -> pa.RecordBatch:
    """A batch of documents of one split. `text` must be a large_string array without nulls."""
    return pa.RecordBatch.from_arrays(
        [pa.array(np.full(len(text), split, np.int32)), pa.array(rows, pa.int64()), text],
        schema=DOCUMENTS,
    )


def text_buffers(text: pa.Array) -> tuple[Bytes, Offsets]:
    """Zero-copy (data, offsets) of a large_string array; offsets may start above 0."""
    _, offsets, data = text.buffers()
    if len(text) == 0 or offsets is None:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    off = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), off


def text_array(data: Bytes, offsets: Offsets) -> pa.Array:
    """The inverse of `text_buffers`: a large_string array over the two arrays, without a copy."""
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1,
        pa.py_buffer(np.ascontiguousarray(offsets)),
        pa.py_buffer(np.ascontiguousarray(data)),
    )
