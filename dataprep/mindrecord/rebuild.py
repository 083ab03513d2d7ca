"""The index of a data file, recomputed from the data file alone."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dataprep.errors import UserError
from dataprep.mindrecord.chain import row_ends
from dataprep.mindrecord.encode import PREFIX, Int64
from dataprep.mindrecord.fields import raw_values
from dataprep.mindrecord.filemap import FileMap
from dataprep.mindrecord.header import Header, Page, read_header
from dataprep.mindrecord.index import encode_index

SQL_TYPES = {"int32": "INTEGER", "int64": "INTEGER", "float32": "REAL", "float64": "REAL"}


def rebuild_index(path: Path, name: str | None = None) -> bytes:
    """The index (".db") of the data file `path`; for our files the very bytes it had.

    `name`: base name of the data file to write into it, `path.name` by default. MindSpore finds the
    rows of a file that is given in a list by this name alone, so a renamed file needs no more than
    an index of its new name; a file given as one string it looks up by the name in its header.

    Raises UserError, with the place, when the file cannot be read or is damaged.
    """
    try:
        with path.open("rb") as file:
            header = read_header(file)
            data = FileMap(file)
        locations = _locations(header, data)
        fields = {
            field: (SQL_TYPES.get(kind, "TEXT"), values)
            for field, kind, values in _index_fields(header, data, locations)
        }
        return encode_index(name or path.name, locations, fields)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, sqlite3.Error) as e:
        raise UserError(
            f"{path} is damaged: {e}; no index can be made for it, copy the file again from a good "
            "copy or build it again"
        ) from e


def _locations(header: Header, data: FileMap) -> Int64:
    """int64 [rows, 8], see `index.COLUMNS`."""
    places = {g: (page, at) for page in header.pages for g, at in page.groups if _is_raw(page)}
    parts = []
    for blob in header.blobs:
        rows = blob.end_row - blob.first_row
        if blob.type_id not in places:
            raise ValueError(f"no page has the raw rows of page {blob.page_id}")
        raw, at = places[blob.type_id]
        blob_ends = _ends(header, data, blob, 0, rows)
        raw_ends = _ends(header, data, raw, at, rows, more=True)
        part = np.empty((rows, 8), np.int64)
        part[:, 0] = np.arange(blob.first_row, blob.end_row)
        part[:, 1] = raw.page_id
        part[:, 2] = np.concatenate([[at], raw_ends[:-1]])[:rows]
        part[:, 3] = raw_ends
        part[:, 4] = blob.type_id
        part[:, 5] = blob.page_id
        part[:, 6] = np.concatenate([[0], blob_ends[:-1]])[:rows]
        part[:, 7] = blob_ends
        parts.append(part)
    return np.concatenate(parts)


def _is_raw(page: Page) -> bool:
    return page.kind == "RAW_DATA"


def _ends(
    header: Header, data: FileMap, page: Page, at: int, rows: int, more: bool = False
) -> Int64:
    """Ends of `rows` rows of a page, the first of which begins at byte `at` of it."""
    if not 0 <= at <= page.used:
        raise ValueError(f"page {page.page_id} has no byte {at:,}")
    address = data.address + header.layout.offset(page.page_id) + at
    try:
        return row_ends(address, page.used - at, rows, more) + at
    except ValueError as e:
        raise ValueError(f"page {page.page_id}, from byte {at:,} on: {e}") from e


def _index_fields(
    header: Header, data: FileMap, locations: Int64
) -> list[tuple[str, str, Sequence[int | float | str]]]:
    """(field, type, value a row) of the fields that the index repeats."""
    for field in header.index_fields:
        if field not in header.schema or header.schema[field].is_blob:
            raise ValueError(f"its header names an index field {field!r} that is no number or text")
    if not header.index_fields:
        return []
    rows = []
    for row, page, first, stop in locations[:, :4].tolist():
        at = header.layout.offset(page)
        try:
            rows.append(raw_values(header.schema, data.content(at + first + PREFIX, at + stop)))
        except ValueError as e:
            raise ValueError(f"row {row:,}: {e}") from e
    shortest: dict[str, Callable[..., float]] = {"float32": _shortest}
    fields: list[tuple[str, str, Sequence[int | float | str]]] = []
    for field in header.index_fields:
        kind = header.schema[field].type
        same = shortest.get(kind, lambda v: v)
        fields.append((field, kind, [same(row[field]) for row in rows]))
    return fields


def _shortest(value: float) -> float:
    """A value of a float32 field as FileWriter puts it into the index: 0.1, not
    0.10000000149011612; but a Python float that no float32 is, as it stands in the row."""
    return value if float(np.float32(value)) != value else float(str(np.float32(value)))
