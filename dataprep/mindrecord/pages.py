"""Which page every row goes to, by FileWriter's rules for rows that arrive one by one.

A row lies in two places: its arrays in a blob page, its scalars in a raw page. There are no
scalars here, so a raw row is a constant of 13 bytes. The rows of one blob page are a *row group*,
whose raw rows must lie in one raw page, one after another:

    page 0  blob  rows 0..845             group 0
    page 1  raw   groups 0 and 1
    page 2  blob  rows 846..1694          group 1
    page 3  blob  rows 1695..2542         group 2, whose raw rows began in page 1 ...
    page 4  raw   groups 2 and 3          ... and moved here as a whole when page 1 was full

Pages are numbered as they are opened, and the last page of the file ends with its last byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dataprep.mindrecord.encode import Int64
from dataprep.mindrecord.header import Layout, Page

RAW_ROW = b"\x05\0\0\0\0\0\0\0" + b"\x81\xa2id\x00"  # uint64 LE length, msgpack of {"id": 0}


@dataclass(frozen=True)
class Run:
    """Rows that are written in one go."""

    first: int
    """First row, counted from 0 in the sizes given to `place`."""
    stop: int
    """One past the last row."""
    blob_offset: int
    """Where their encoded bytes begin in the file."""
    raw_offset: int
    """Where `raw_rows` copies of RAW_ROW begin in the file."""
    raw_rows: int
    """`stop - first`, and more when the group's earlier raw rows move along."""


class PageTable:
    """The pages of one data file, while it is written.

    MindSpore groups rows so too when they come in large batches, but then numbers the pages of a
    batch blob first; one by one is the order that does not depend on how a caller cuts blocks.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.pages: list[Page] = []
        self._blob: Page | None = None
        self._raw: Page | None = None
        self._sizes: list[Int64] = []

    def place(self, sizes: Int64) -> Iterator[Run]:
        """Places the next rows, of `sizes` bytes (int64 [rows]), each at most a page."""
        self._sizes.append(sizes)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        first = 0
        while first < len(sizes):
            blob, raw = self._open_pages(int(sizes[first]))
            room = self.layout.page_size - blob.used
            fit = int(np.searchsorted(offsets, offsets[first] + room, side="right")) - 1
            raw_room = (self.layout.page_size - raw.used) // len(RAW_ROW)
            moved = 0
            if raw_room == 0:
                raw, moved = self._move_group(raw)
                raw_room = self.layout.page_size // len(RAW_ROW) - moved
            stop = min(fit, first + raw_room)
            rows = stop - first
            at = self.layout.offset(raw.page_id) + raw.used - moved * len(RAW_ROW)
            yield Run(first, stop, self.layout.offset(blob.page_id) + blob.used, at, rows + moved)
            blob.used += int(offsets[stop] - offsets[first])
            blob.end_row += rows
            raw.used += rows * len(RAW_ROW)
            first = stop

    def locations(self) -> Int64:
        """int64 [rows, 8], a row of the index each; see `index.COLUMNS`."""
        blobs = [page for page in self.pages if page.kind == "BLOB_DATA"]
        counts = [page.end_row - page.first_row for page in blobs]
        place = {g: (page.page_id, at) for page in self.pages for g, at in page.groups}
        sizes = np.concatenate(self._sizes)
        before = np.cumsum(sizes) - sizes
        row = np.arange(len(sizes))
        # Per group, then repeated for its rows: raw page and offset, id, blob page, first row.
        groups = np.array([(*place[b.type_id], b.type_id, b.page_id, b.first_row) for b in blobs])
        raw_page, raw_start, group, blob_page, first = np.repeat(groups, counts, axis=0).T
        raw = raw_start + (row - first) * len(RAW_ROW)
        blob = before - before[first]
        columns = (row, raw_page, raw, raw + len(RAW_ROW), group, blob_page, blob, blob + sizes)
        return np.stack(columns, axis=1)

    def _open_pages(self, size: int) -> tuple[Page, Page]:
        """The pages the next row, of `size` bytes, goes to; opens a row group if it must."""
        blob, raw = self._blob, self._raw
        if blob and raw and blob.used + size <= self.layout.page_size:
            return blob, raw
        row = blob.end_row if blob else 0
        group = blob.type_id + 1 if blob else 0
        self._blob = blob = self._open(Page("BLOB_DATA", 0, group, row, row))
        if raw is None or raw.used + len(RAW_ROW) > self.layout.page_size:
            raw = self._open_raw(raw)
        raw.groups.append((group, raw.used))
        return blob, raw

    def _move_group(self, full: Page) -> tuple[Page, int]:
        """Opens a raw page and moves the last group of the full one there; its rows so far."""
        group, start = full.groups.pop()
        moved = full.used - start
        full.used = start
        raw = self._open_raw(full)
        raw.groups.append((group, 0))
        raw.used = moved
        return raw, moved // len(RAW_ROW)

    def _open_raw(self, last: Page | None) -> Page:
        # The type id is odd, but FileWriter's: the number of the raw page before, plus one.
        self._raw = self._open(Page("RAW_DATA", 0, last.page_id + 1 if last else 0))
        return self._raw

    def _open(self, page: Page) -> Page:
        page.page_id = len(self.pages)
        self.pages.append(page)
        return page
