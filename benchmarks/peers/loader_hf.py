"""Hugging Face `datasets`: an Arrow file of fixed-length int32 lists, memory-mapped.

Its fastest documented ways: `with_format` keeps rows out of Python lists, and a list of indices
fetches a batch at once. `dtype` keeps int32, which the formats widen to int64 otherwise.

    numpy   in this process, `dataset[indices]`; in order, `dataset.iter(8)`
    torch   `with_format("torch")` under a DataLoader, which fetches whole batches

Shuffled orders go through indices, as `DataLoader(shuffle=True)` does. `.shuffle()` keeps a table
of indices besides and is slower; `.flatten_indices()` after it writes the data set anew each epoch.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
from loader_timing import BATCH, SEED, Batches, Open, peer_main

NAME = "input_ids"


def prepare(rows: np.ndarray, folder: Path) -> None:
    """A data set of one column, List(int32, length=S)."""
    features = datasets.Features(
        {NAME: datasets.List(datasets.Value("int32"), length=rows.shape[1])}
    )

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        for row in rows:
            yield {NAME: row}

    cache = str(folder / "cache")
    made = datasets.Dataset.from_generator(blocks, features=features, cache_dir=cache)
    made.save_to_disk(str(folder / "data"))


def in_process(folder: Path, length: int) -> Open:
    """NumPy batches; `workers` must be 0."""

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        assert workers == 0
        dataset = datasets.load_from_disk(str(folder / "data"))
        dataset = dataset.with_format("numpy", dtype=np.int32)
        rng = np.random.default_rng(SEED)

        def shuffled() -> Batches:
            order = rng.permutation(len(dataset))
            for at in range(0, len(order), BATCH):
                yield dataset[order[at : at + BATCH]][NAME]

        def ordered() -> Batches:
            for batch in dataset.iter(BATCH):
                yield batch[NAME]

        while True:
            yield shuffled() if shuffle else ordered()

    return open_loader


def under_dataloader(folder: Path, length: int) -> Open:
    """torch batches."""
    import torch
    from torch.utils.data import DataLoader

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        dataset = datasets.load_from_disk(str(folder / "data"))
        dataset = dataset.with_format("torch", dtype=torch.int32)
        loader = DataLoader(
            dataset,
            BATCH,
            shuffle=shuffle,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(SEED),
        )
        while True:
            yield (batch[NAME] for batch in loader)

    return open_loader


if __name__ == "__main__":
    variants = {"numpy": in_process, "torch": under_dataloader}
    peer_main("HF datasets", datasets.__version__, prepare, variants)
