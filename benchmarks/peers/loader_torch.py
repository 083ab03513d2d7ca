"""torch's DataLoader over int32 rows in a NumPy file, in its fastest ways known to us.

rows      map-style data set of rows, default collation
batches   the data set's `__getitems__` gathers a whole batch at once: no Python a row
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from loader_timing import BATCH, SEED, Batches, Open, peer_main
from torch.utils.data import DataLoader


def prepare(rows: np.ndarray, folder: Path) -> None:
    """rows.npy, int32."""
    np.save(folder / "rows.npy", rows)


class Rows:
    """Row i as an int32 tensor [S]."""

    def __init__(self, folder: Path) -> None:
        # torch only warns that a read-only array stays read-only if it is asked: "c" is private.
        self.rows = np.load(folder / "rows.npy", mmap_mode="c")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[i])


class Gathered(Rows):
    """A list of rows at once, int32 [b, S]."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.rows[indices])


def of(dataset: type[Rows], **options: object):
    """A variant: the data set under a DataLoader."""

    def variant(folder: Path, length: int) -> Open:
        def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
            loader = DataLoader(
                dataset(folder),
                BATCH,
                shuffle=shuffle,
                num_workers=workers,
                persistent_workers=workers > 0,
                generator=torch.Generator().manual_seed(SEED),
                **options,
            )
            while True:
                yield iter(loader)

        return open_loader

    return variant


def same(batch: torch.Tensor) -> torch.Tensor:
    """Already a batch."""
    return batch


if __name__ == "__main__":
    variants = {"rows": of(Rows), "batches": of(Gathered, collate_fn=same)}
    peer_main("torch DataLoader", torch.__version__, prepare, variants)
