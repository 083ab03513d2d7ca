"""Rows to MindRecord: ours against MindSpore's FileWriter.

python -m benchmarks.writer
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from mindspore.mindrecord import FileWriter

from benchmarks.common import machine, median_seconds, table
from dataprep.mindrecord import ShardWriter, fit_layout

ROWS, LENGTH, BLOCK = 10_000, 2049, 1000


def main() -> None:
    """Prints Mtok/s of both for 2049-token int32 rows of a 32,000-word vocabulary."""
    rows = np.random.default_rng(0).integers(0, 32_000, (ROWS, LENGTH), np.int32)
    columns = {"input_ids": LENGTH}
    folder = Path(tempfile.mkdtemp())

    def ours() -> None:
        with ShardWriter(folder / "ours.mindrecord", columns, fit_layout(columns, ROWS)) as writer:
            for start in range(0, ROWS, BLOCK):
                writer.write({"input_ids": rows[start : start + BLOCK]})

    def peer() -> None:
        writer = FileWriter(str(folder / "peer.mindrecord"), 1, overwrite=True)
        writer.add_schema({"input_ids": {"type": "int32", "shape": [LENGTH]}}, "peer")
        for start in range(0, ROWS, BLOCK):
            writer.write_raw_data([{"input_ids": row} for row in rows[start : start + BLOCK]])
        writer.commit()

    try:
        mine, theirs = median_seconds(ours, 3), median_seconds(peer, 3)
    finally:
        shutil.rmtree(folder)
    tokens = ROWS * LENGTH / 1e6
    print(f"{ROWS:,} rows of {LENGTH} tokens, hashed and synced to disk by ours; {machine()}\n")
    head = ("", "mindprep Mtok/s", "FileWriter Mtok/s", "ratio")
    print(table(head, [("write", tokens / mine, tokens / theirs, theirs / mine)]))


if __name__ == "__main__":
    main()
