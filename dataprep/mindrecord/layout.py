"""How large header and pages of a data set's shards must be.

MindRecord reserves both before the first row is known, and all shards loaded together must agree.
FileWriter's defaults (16 MiB, 32 MiB) make a 48 MB file of one row; here they follow the data.
"""

from collections.abc import Mapping

from dataprep.errors import UserError
from dataprep.files import canonical_json
from dataprep.mindrecord.encode import most_bytes
from dataprep.mindrecord.header import Layout, Page, check_columns, encode_header
from dataprep.mindrecord.pages import RAW_ROW

MIN_PAGE, MAX_PAGE = 1 << 15, 1 << 26  # 32 KiB (MindRecord's own least) to 64 MiB
MIN_HEADER, MAX_HEADER = 1 << 14, 1 << 27  # 16 KiB to 128 MiB, MindRecord's own limits
NAMES = 2048  # bytes of the header kept free for the file name and the description


def row_bytes(columns: Mapping[str, int]) -> int:
    """Most bytes one row can take in a blob page, its uint64 prefix included."""
    return most_bytes(list(columns.values()))


def fit_layout(columns: Mapping[str, int], max_rows: int) -> Layout:
    """The layout that wastes least in shards of at most `max_rows` rows, whatever their values.

    Three wastes are weighed for every power of two as page size: half a row at the end of each
    page, the unfilled last blob and raw page, and the header, which lists the pages.

    Raises UserError when a row does not fit the largest page or the pages not the largest header,
    ValueError for invalid columns or `max_rows` < 1.
    """
    check_columns(columns)
    if max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}; a shard has at least one row")
    row = row_bytes(columns)
    if row > MAX_PAGE:
        fixed = row_bytes(dict.fromkeys(columns, 1))
        longest = max(columns.values())
        raise UserError(
            f"a row of arrays of lengths {dict(columns)} takes up to {row:,} bytes, and a "
            f"MindRecord page holds {MAX_PAGE:,}; "
            f"lower seq_length to at most {longest * (MAX_PAGE - fixed) // row:,}"
        )
    best: tuple[int, Layout] | None = None
    page_size = MIN_PAGE
    while page_size <= MAX_PAGE:
        if page_size >= row:
            blobs = -(-max_rows // (page_size // row))
            header = _header_size(columns, max_rows, page_size, blobs)
            waste = header + blobs * row // 2 + 2 * page_size
            if header <= MAX_HEADER and (best is None or waste < best[0]):
                best = waste, Layout(header, page_size)
        page_size *= 2
    if best is None:
        raise UserError(
            f"{max_rows:,} rows of up to {row:,} bytes do not fit one MindRecord file; "
            "use more shards"
        )
    return best[1]


def _header_size(columns: Mapping[str, int], max_rows: int, page_size: int, blobs: int) -> int:
    """Header bytes, a multiple of 4 KiB, that hold the page list in the worst case."""
    # A row group moves to a new raw page as a whole, so any two neighbours exceed one page.
    raws = 2 * len(RAW_ROW) * max_rows // page_size + 1
    pages = blobs + raws
    fixed = encode_header(Layout(MAX_HEADER, MAX_PAGE), [], columns, "", "", 1 << 62)
    blob = Page("BLOB_DATA", pages, pages, max_rows, max_rows, page_size)
    raw = Page("RAW_DATA", pages, pages, used=page_size)
    group = len(f'{{"id":{blobs},"offset":{page_size}}},')
    need = len(fixed) + NAMES + blobs * (_entry(blob) + group) + raws * _entry(raw)
    return max(MIN_HEADER, -(-need // 4096) * 4096)


def _entry(page: Page) -> int:
    """Bytes of a page's entry in the header, with its comma."""
    return len(canonical_json(page.to_json())) + 1
