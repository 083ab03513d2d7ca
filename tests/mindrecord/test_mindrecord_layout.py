"""The layout fits what it promises to fit, and is no larger than it needs to be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UserError
from dataprep.mindrecord.header import encode_header
from dataprep.mindrecord.layout import Layout, fit_layout, row_bytes
from dataprep.mindrecord.pages import PageTable


def test_a_row_takes_at_most() -> None:
    assert row_bytes({"a": 1}) == 8 + 4 + 1 + 4
    assert row_bytes({"a": 1, "b": 5}) == 8 + (8 + 4 + 1 + 4) + (8 + 4 + 2 + 20)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (10, Layout(16_384, 32_768)),
        (1_000, Layout(16_384, 131_072)),
        (30_000, Layout(53_248, 1_048_576)),
        (1_000_000, Layout(434_176, 4_194_304)),
    ],
)
def test_the_layout_follows_the_data(rows: int, expected: Layout) -> None:
    assert fit_layout({"input_ids": 2049}, rows) == expected


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5_000), min_size=1),
    st.integers(1, 20_000),
    st.booleans(),
)
def test_a_full_shard_fits(columns: dict[str, int], rows: int, worst: bool) -> None:
    layout = fit_layout(columns, rows)
    table = PageTable(layout)
    size = row_bytes(columns) if worst else 14
    for _ in table.place(np.full(rows, size)):
        pass
    header = encode_header(layout, table.pages, columns, "n" * 255, "d" * 1_000, 1 << 62)
    assert len(header) <= layout.header_size
    assert all(page.used <= layout.page_size for page in table.pages)
    # Overhead beside the data itself: two pages that are not full, ends of pages, the header.
    waste = layout.offset(len(table.pages)) - rows * size
    assert waste <= layout.header_size + 3 * layout.page_size + rows * (size // 2 + 13)


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(UserError, match="lower seq_length to at most 15,790,314"):
        fit_layout({"input_ids": 16_000_000}, 1)
    assert fit_layout({"input_ids": 15_790_314}, 1).page_size == 1 << 26
    with pytest.raises(UserError, match="use more shards"):
        fit_layout({"input_ids": 1_000_000}, 100_000_000)


def test_nonsense_is_refused() -> None:
    for columns, rows in (({}, 1), ({"a": 0}, 1), ({"a b": 1}, 1), ({"a": 1}, 0)):
        with pytest.raises(ValueError):
            fit_layout(columns, rows)
