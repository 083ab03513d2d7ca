"""MosaicML streaming: MDS shards with an `ndarray:int32:S` column, local, not compressed.

    dataloader   StreamingDataset(local=...) under its StreamingDataLoader

Shuffled: its default algorithm (py1e), which mixes within blocks of samples, not globally.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import streaming_bare
from loader_timing import BATCH, SEED, Batches, Open, peer_main
from streaming.base import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

NAME = "input_ids"


def prepare(rows: np.ndarray, folder: Path) -> None:
    """MDS shards of 64 MiB, its default."""
    column = {NAME: f"ndarray:int32:{rows.shape[1]}"}
    with MDSWriter(out=str(folder / "mds"), columns=column) as out:
        for row in rows:
            out.write({NAME: np.ascontiguousarray(row)})
    # It refuses to open one folder twice in a process: one name for each time.
    for i in range(32):
        (folder / f"mds-{i}").symlink_to("mds")


def dataloader(folder: Path, length: int) -> Open:
    """torch batches of its column."""
    names = iter(range(32))

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        dataset = StreamingDataset(
            local=str(folder / f"mds-{next(names)}"),
            batch_size=BATCH,
            shuffle=shuffle,
            shuffle_seed=SEED,
            num_canonical_nodes=1,
        )
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
        )
        while True:
            yield (batch[NAME] for batch in loader)

    return open_loader


if __name__ == "__main__":
    clean_stale_shared_memory()  # of a run that was ended from outside
    variants = {"dataloader": dataloader}
    peer_main("MosaicML streaming", streaming_bare.VERSION, prepare, variants)
