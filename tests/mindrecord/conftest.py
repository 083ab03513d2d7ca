"""What the MindRecord tests share."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.mindrecord import Layout, ShardWriter

os.environ.setdefault("GLOG_v", "3")  # MindSpore logs errors only; read when it is imported

Rows = dict[str, npt.NDArray[np.int32]]
SMALLEST = Layout(header_size=1 << 14, page_size=1 << 15)


@pytest.fixture
def random_rows() -> Callable[[dict[str, int], int], Rows]:
    """`random_rows(columns, n)`: n rows whose values need 1, 2 or 4 bytes, the extremes too."""

    def make(columns: dict[str, int], rows: int) -> Rows:
        rng = np.random.default_rng(len(columns) * 1000 + rows)
        edges = np.array([-(2**31), 2**31 - 1, 65_536, -100, 127, 128, -129, 32_768], np.int32)
        out = {}
        for name, length in columns.items():
            values = rng.integers(-40_000, 40_000, (rows, length)).astype(np.int32)
            narrow = rng.random((rows, 1)) < 0.3  # rows of small values, as masks are
            values = np.where(narrow, values % 100, values).astype(np.int32)
            values.flat[: len(edges)] = edges[: values.size]
            values.flat[-len(edges) :] = edges[-values.size :]
            out[name] = values
        return out

    return make


@pytest.fixture
def write() -> Callable[..., ShardWriter]:
    """`write(path, rows, layout=SMALLEST, block=None)`: one shard; the finished writer."""

    def write_shard(
        path: Path, rows: Rows, layout: Layout = SMALLEST, block: int | None = None
    ) -> ShardWriter:
        n = len(next(iter(rows.values())))
        with ShardWriter(path, {c: v.shape[1] for c, v in rows.items()}, layout) as writer:
            for first in range(0, n, block or n):
                writer.write({c: v[first : first + (block or n)] for c, v in rows.items()})
        return writer

    return write_shard
