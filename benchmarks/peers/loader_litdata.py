"""litdata: chunks of about 16 MiB written by its `optimize`, with its token item loader.

tokens      optimize(item_loader=TokensLoader(block_size=S)): rows of one stream of tokens,
            what litdata documents for language models, and its fastest way

under its StreamingDataLoader
"""

import importlib.metadata
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from loader_timing import BATCH, SEED, Batches, Open, peer_main

PARTS = 8


def part(path: str, i: int) -> Iterator[torch.Tensor]:
    """Rows of one part, as one tensor each."""
    rows = np.load(path, mmap_mode="r")
    step = len(rows) // PARTS
    stop = len(rows) if i == PARTS - 1 else (i + 1) * step
    for row in rows[i * step : stop]:
        yield torch.from_numpy(np.array(row))


def prepare(rows: np.ndarray, folder: Path) -> None:
    """Chunks that hold whole rows."""
    length = rows.shape[1]
    work = folder / "work"
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        os.environ[name] = str(work)
    optimize(
        fn=partial(part, str(rows.filename)),
        inputs=list(range(PARTS)),
        output_dir=str(folder / "data"),
        num_workers=1,
        chunk_size=max(1, (16 << 20) // (4 * length)) * length,
        item_loader=TokensLoader(block_size=length),
    )
    shutil.rmtree(work, ignore_errors=True)


def tokens(folder: Path, length: int) -> Open:
    """torch batches."""

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        dataset = StreamingDataset(
            str(folder / "data"),
            item_loader=TokensLoader(block_size=length),
            shuffle=shuffle,
            seed=SEED,
            drop_last=False,
        )
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
        )
        while True:
            yield iter(loader)

    return open_loader


if __name__ == "__main__":
    peer_main("litdata", importlib.metadata.version("litdata"), prepare, {"tokens": tokens})
