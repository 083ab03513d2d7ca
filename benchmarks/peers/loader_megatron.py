"""A Megatron-style memory map: .bin of uint16 ids, .idx of row starts, int32 rows out.

Our own plain code with the operations of Megatron-LM's IndexedDataset and GPTDataset: a NumPy
memory map, one slice a sample, `astype`, and torch's default collation under a DataLoader.

    plain        row after row in this process, `np.stack`; no torch at all
    dataloader   the same Dataset under a torch DataLoader; workers 0: in this process
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from loader_timing import BATCH, SEED, Batches, Open, peer_main


def prepare(rows: np.ndarray, folder: Path) -> None:
    """data.bin and data.idx (int64 [n + 1]: first token of each row, and the end)."""
    rows.astype(np.uint16).tofile(folder / "data.bin")
    np.save(folder / "data.idx.npy", np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])


class Rows:
    """A map-style data set: row i as int32 [S]."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = np.load(folder / "data.idx.npy", mmap_mode="r")
        self.tokens = np.memmap(folder / "data.bin", np.uint16, mode="r")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.starts[i] : self.starts[i + 1]].astype(np.int32)


def plain(folder: Path, length: int) -> Open:
    """Iteration in this process; `workers` must be 0."""

    def open_loader(shuffle: bool, workers: int) -> Iterable[Batches]:
        assert workers == 0
        rows = Rows(folder)
        rng = np.random.default_rng(SEED)

        def epoch() -> Batches:
            order = rng.permutation(len(rows)) if shuffle else np.arange(len(rows))
            for at in range(0, len(rows), BATCH):
                yield np.stack([rows[i] for i in order[at : at + BATCH]])

        while True:
            yield epoch()

    return open_loader


def dataloader(folder: Path, length: int) -> Open:
    """torch's DataLoader over the same rows."""
    import torch
    from torch.utils.data import DataLoader

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        loader = DataLoader(
            Rows(folder),
            BATCH,
            shuffle=shuffle,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(SEED),
        )
        while True:
            yield iter(loader)

    return open_loader


if __name__ == "__main__":
    version = f"numpy {np.__version__}, Python {sys.version.split()[0]}"
    peer_main("megatron-style", version, prepare, {"plain": plain, "dataloader": dataloader})
