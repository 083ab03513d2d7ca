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
NAME = "[0-9a-zA-Z_]+"  # of a field, as MindRecord takes it
MAX_PAGE = 1 << 28  # bytes, MindRecord's own limit
NUMBERS = ("int32", "int64", "float32", "float64")
TYPES = (*NUMBERS, "string", "bytes")


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
    """One page: either blobs (rows' arrays) or raw (rows' scalars; in our files a dummy a row)."""

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

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Page":
        """The inverse. Raises KeyError, TypeError or ValueError."""
        return cls(
            kind=str(raw["page_type"]),
            page_id=int(raw["page_id"]),
            type_id=int(raw["page_type_id"]),
            first_row=int(raw["start_row_id"]),
            end_row=int(raw["end_row_id"]),
            used=int(raw["page_size"]),
            groups=[(int(group["id"]), int(group["offset"])) for group in raw["row_group_ids"]],
        )


@dataclass(frozen=True)
class Field:
    """What a row holds under a name."""

    type: str
    """One of TYPES."""
    shape: tuple[int, ...] | None = None
    """Of an array of numbers, -1 for any length; None: one number, a string or bytes."""

    @property
    def is_blob(self) -> bool:
        """Whether it lies in the blob page; other fields lie in the raw page."""
        return self.shape is not None or self.type == "bytes"

    @property
    def is_column(self) -> bool:
        """Whether it is what we write: an int32 array of one fixed length."""
        shape = self.shape or ()
        return self.type == "int32" and len(shape) == 1 and shape[0] > 0


@dataclass(frozen=True)
class Header:
    """What a reader needs of a header."""

    layout: Layout
    schema: dict[str, Field]
    """All fields, in alphabetical order."""
    name: str
    """Base name the file was written under."""
    index_fields: list[str]
    """The fields that the index repeats."""
    pages: list[Page]
    """In the order of the file."""
    end: int
    """Bytes of the file: where the last page in use ends."""

    @property
    def blobs(self) -> list[Page]:
        """The blob pages, in the order of their rows."""
        return sorted((p for p in self.pages if p.kind == "BLOB_DATA"), key=lambda p: p.first_row)

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return max((page.end_row for page in self.blobs), default=0)

    @property
    def columns(self) -> dict[str, int]:
        """Column -> length of its int32 array, in alphabetical order; without any other field."""
        return {c: f.shape[0] for c, f in self.schema.items() if f.is_column and f.shape}

    @property
    def blob_fields(self) -> list[str]:
        """The fields of a blob row, in their order in it."""
        return [name for name, what in self.schema.items() if what.is_blob]


def check_columns(columns: Mapping[str, int]) -> None:
    """Raises ValueError unless every column has a name MindRecord takes and at least one slot."""
    if not columns:
        raise ValueError("a data set needs at least one column")
    for name, length in columns.items():
        if not re.fullmatch(NAME, name):
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
    """Reads and checks the header of an open data file, ours or FileWriter's.

    Raises ValueError with the cause when it is damaged.
    """
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8:
        raise ValueError("it is not a MindRecord file, or is cut short")
    try:
        header = _parse(json.loads(file.read(length)))
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        raise ValueError(f"its header lacks or garbles a key ({type(e).__name__}: {e})") from e
    _check_pages(header)
    if 8 + length > header.layout.header_size:
        raise ValueError(f"its header overlaps page 0, at {header.layout.header_size:,}")
    if size < header.end:
        raise ValueError(f"it has {size:,} bytes where its header tells of {header.end:,}")
    return header


def _parse(raw: Mapping[str, Any]) -> Header:
    if raw["version"] != VERSION:
        raise ValueError(f"it has version {raw['version']!r}; this reader knows {VERSION}")
    layout = Layout(int(raw["header_size"]), int(raw["page_size"]))
    (described,) = raw["schema"]
    schema = {}
    for name in sorted(described["schema"]):
        entry = described["schema"][name]
        if not re.fullmatch(NAME, name):
            raise ValueError(f"its field name {name!r} holds more than letters, digits and _")
        shape = tuple(map(int, entry["shape"])) if "shape" in entry else None
        schema[name] = Field(str(entry["type"]), shape)
        wrong = shape is not None and (not shape or min(shape) < -1 or shape.count(-1) > 1)
        if wrong or schema[name].type not in (TYPES if shape is None else NUMBERS):
            raise ValueError(f"its field {name!r} is of the unknown kind {entry}")
    names = [name for name, what in schema.items() if what.is_blob]
    if described["blob_fields"] != names:
        raise ValueError(f"its blob fields are {described['blob_fields']}, not {names}")
    pages = [Page.from_json(page) for page in raw["page"]]
    if not pages:
        raise ValueError("it has no pages")
    return Header(
        layout,
        schema,
        str(raw["shard_addresses"][int(raw["shard_id"])]),
        [str(index["index_field"]) for index in raw["index_fields"] or []],
        pages,
        max(layout.offset(page.page_id) + page.used for page in pages),
    )


def _check_pages(header: Header) -> None:
    """Raises ValueError unless the pages hold the rows 0, 1, 2 ... once, and can hold them.

    So what a reader reserves for rows and columns follows the size of the file, whatever it says.
    """
    layout = header.layout
    if layout.header_size < 0 or not 0 < layout.page_size <= MAX_PAGE:
        raise ValueError(f"its pages have {layout.page_size:,} bytes")
    count = len(header.pages)
    for page in header.pages:
        if not (0 <= page.page_id < count and 0 <= page.used <= layout.page_size):
            raise ValueError(f"its page {page.page_id} has {page.used:,} bytes")
        if not all(0 <= number <= count for number in (page.type_id, *(g for g, _ in page.groups))):
            raise ValueError(f"its page {page.page_id} names a row group that cannot be")
    if len({page.page_id for page in header.pages}) < count:
        raise ValueError("two of its pages are one")
    row = 0
    for page in header.blobs:  # the shortest row is its own length, 8 bytes
        if page.first_row != row or not 0 <= page.end_row - row <= page.used // 8:
            raise ValueError(f"its pages do not tell where row {row:,} is")
        row = page.end_row
    least = sum(5 * length // 4 for length in header.columns.values())  # bytes of the shortest row
    if least > layout.page_size:
        raise ValueError(
            f"a row of its columns has {least:,} bytes or more, which no page can hold"
        )
