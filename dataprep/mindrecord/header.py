"""The header of a MindRecord 3.0 data file: what it holds, to bytes and back.

    0                         uint64 LE  length of the JSON
    8                         JSON, UTF-8, no spaces: schema, page list, own base name
    ...                       zeros
    header_size               page 0
    header_size + page_size   page 1, and so on

The last page ends with its last byte in use, the others are padded with zeros (holes on disk).
"""

import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

VERSION = "3.0"


@dataclass(frozen=True)
class Layout:
    """Where the pages of a data file lie. All shards of a data set share it."""

    header_size: int
    """Bytes before page 0, a multiple of 4."""
    page_size: int
    """Bytes from one page to the next, a multiple of 4."""

    def offset(self, page_id: int) -> int:
        """Byte offset of a page in the file."""
        return self.header_size + self.page_size * page_id


@dataclass
class Page:
    """One page: either blobs (rows' arrays) or raw (rows' scalars, here a dummy a row)."""

    kind: str
    """"BLOB_DATA" or "RAW_DATA"."""
    page_id: int
    """Place in the file."""
    type_id: int
    """A blob page's is its row group's id."""
    first_row: int = 0
    """Blob pages only."""
    end_row: int = 0
    """One past the last row; blob pages only."""
    used: int = 0
    """Bytes in use, from the page's start."""
    groups: list[tuple[int, int]] = field(default_factory=list)
    """Raw pages: (row group, byte offset in the page) of each group in it. One group = the rows of
    one blob page."""

    def to_json(self) -> dict[str, Any]:
        """The page's entry in the header. A blob page always says group 0 at 0, as FileWriter."""
        groups = self.groups if self.kind == "RAW_DATA" else [(0, 0)]
        return {
            "end_row_id": self.end_row,
            "page_id": self.page_id,
            "page_size": self.used,
            "page_type": self.kind,
            "page_type_id": self.type_id,
            "row_group_ids": [{"id": g, "offset": at} for g, at in groups],
            "shard_id": 0,
            "start_row_id": self.first_row,
        }


@dataclass(frozen=True)
class Header:
    """What a reader needs of a header."""

    layout: Layout
    columns: dict[str, int]
    """Column -> length of its int32 array, in alphabetical order."""
    name: str
    """Base name the file was written under."""
    rows: int
    pages: int
    end: int
    """Bytes of the file: where the last page in use ends."""


def check_columns(columns: Mapping[str, int]) -> None:
    """Raises ValueError unless every column has a name MindRecord takes and at least one slot."""
    if not columns:
        raise ValueError("a data set needs at least one column")
    for name, length in columns.items():
        if not re.fullmatch("[0-9a-zA-Z_]+", name):
            raise ValueError(f"column name {name!r} may hold only letters, digits and _")
        if length < 1:
            raise ValueError(f"column {name!r} has length {length}; it must be at least 1")


def encode_header(
    layout: Layout,
    pages: Sequence[Page],
    columns: Mapping[str, int],
    name: str,
    desc: str,
    saved: int,
) -> bytes:
    """Length and JSON of a header, key for key as MindSpore's FileWriter writes it.

    `saved` is what integer compression spared, in bytes. The result may be longer than
    `layout.header_size`; the caller checks.
    """
    schema = {c: {"shape": [columns[c]], "type": "int32"} for c in sorted(columns)}
    fields = {
        "header_size": layout.header_size,
        "index_fields": None,
        "page": [page.to_json() for page in pages],
        "page_size": layout.page_size,
        "compression_size": max(saved, 0),
        "schema": [{"blob_fields": sorted(columns), "desc": desc, "schema": schema}],
        "shard_addresses": [name],
        "shard_id": 0,
        "statistics": None,
        "version": VERSION,
    }
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return struct.pack("<Q", len(text)) + text


def read_header(file: BinaryIO) -> Header:
    """Reads and checks the header of an open data file.

    Raises ValueError with the cause when it is damaged, or not one of int32 arrays.
    """
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8:
        raise ValueError("it is not a MindRecord file, or is cut short")
    try:
        raw = json.loads(file.read(length))
        if raw["version"] != VERSION:
            raise ValueError(f"it has version {raw['version']!r}; this reader knows {VERSION}")
        layout = Layout(int(raw["header_size"]), int(raw["page_size"]))
        schema = raw["schema"][0]["schema"]
        columns = {c: int(schema[c]["shape"][0]) for c in sorted(schema)}
        check_columns(columns)
        if any(schema[c]["type"] != "int32" or len(schema[c]["shape"]) != 1 for c in columns):
            raise ValueError("its columns are not all int32 arrays of one dimension")
        (name,) = raw["shard_addresses"]
        rows = max((int(page["end_row_id"]) for page in raw["page"]), default=0)
        end = max(layout.offset(int(p["page_id"])) + int(p["page_size"]) for p in raw["page"])
    except (KeyError, TypeError, IndexError) as e:
        raise ValueError(f"its header lacks or garbles a key ({type(e).__name__}: {e})") from e
    if 8 + length > layout.header_size:
        raise ValueError(f"its header overlaps page 0, at {layout.header_size:,}")
    if size < end:
        raise ValueError(f"it has {size:,} bytes where its header tells of {end:,}")
    return Header(layout, columns, str(name), rows, len(raw["page"]), end)
