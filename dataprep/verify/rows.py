"""The rows of a data file, block by block: by MindSpore's reader, the judge, or by ours.

A block is a dict of int32 arrays [n, length], in row order. It is kept small: MindSpore holds some
blocks ahead of who takes them.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataprep.errors import UserError
from dataprep.mindrecord import ShardReader

Int32 = npt.NDArray[np.int32]
Rows = dict[str, Int32]
MOST_ROWS = 256
BLOCK_BYTES = 4 << 20  # of all columns of a block


class Unreadable(Exception):
    """A data file that a reader gives up on: a defect of the file, told with its cause."""


def block_rows(columns: Mapping[str, int]) -> int:
    """Rows of a block."""
    row = 4 * sum(columns.values())
    return min(MOST_ROWS, max(1, BLOCK_BYTES // row))


def mindspore_version() -> str:
    """Version of the judge. Raises UserError when it is not installed."""
    os.environ.setdefault("GLOG_v", "4")  # what is wrong is told as defects
    try:
        import mindspore
    except ImportError as e:
        raise UserError(
            f"verify reads with MindSpore, which cannot be imported ({e}); install it, or add "
            "--fast to read with mindprep's own reader"
        ) from e
    return str(mindspore.__version__)


def by_mindspore(path: Path, columns: Mapping[str, int]) -> Iterator[Rows]:
    """All rows, by MindDataset. Raises Unreadable."""
    import mindspore.dataset as ds

    try:
        data = ds.MindDataset(
            [str(path)], columns_list=list(columns), shuffle=False, num_parallel_workers=1
        )
        data = data.batch(block_rows(columns), num_parallel_workers=1)
        yield from data.create_dict_iterator(num_epochs=1, output_numpy=True)
    except (RuntimeError, ValueError, OSError) as e:
        cause = str(e).partition("[ERROR] ")[2] or str(e)
        raise Unreadable(f"cannot be read by MindSpore: {' '.join(cause.split())[:300]}") from e


def by_ours(path: Path, columns: Mapping[str, int]) -> Iterator[Rows]:
    """All rows, by ShardReader. Raises Unreadable."""
    try:
        with ShardReader(path) as reader:
            step = block_rows(columns)
            for first in range(0, len(reader), step):
                yield reader.read(first, min(first + step, len(reader)))
    except UserError as e:
        raise Unreadable(f"cannot be read: {e}") from e


def shape_defects(
    rows: Mapping[str, npt.NDArray[np.generic]], columns: Mapping[str, int]
) -> list[str]:
    """What in a block is not an int32 array of the right length."""
    found = []
    for name, length in columns.items():
        column = rows.get(name)
        if column is None:
            found.append(f"column {name} is missing")
        elif column.dtype != np.int32 or column.shape[1:] != (length,):
            shape = list(column.shape[1:])
            found.append(f"column {name} is {column.dtype}{shape}, not int32[{length}]")
    extra = sorted(rows.keys() - columns.keys())
    return found + [f"column {name} is not in the manifest" for name in extra]
