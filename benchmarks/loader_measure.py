"""One measurement of ours, in a process of its own. Used by loader.py.

    python -m benchmarks.loader_measure fresh S PRESET VARIANT SECONDS shuffled:2 ...
    python -m benchmarks.loader_measure turns S PRESET SECONDS ROUNDS shuffled:2 ...

    fresh    one variant alone, as the peers are measured: first batch, memory, checksum, rate
    turns    all five by turns (A B C D E E D C B A ...) in one process, so that all see the same
             moments of a noisy machine; a rate for each turn

    raw      MindSpore's MindDataset of all stored columns, batched, Shuffle.GLOBAL or FALSE
    dataset  Loader.mind_dataset(): the same columns from a MindDataset in our order
    loader   training.data.Loader over MindDataset: training batches of five columns
    ready    training.data.Loader(reader="direct"): the same batches without MindSpore
    stored   dataprep.mindrecord.IndexableSource.batches: the stored columns

S is the length of a row; PRESET is a column preset, or `array` for what has no shards:

    gather   NumPy: rows[indices] of an int32 memory map
    memcpy   a copy of as many bytes, from one place: nothing can be faster

Prints one JSON line.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only; read when it is imported

import numpy as np

from benchmarks.loader_data import made
from benchmarks.peers.loader_timing import (
    BATCH,
    SEED,
    Batches,
    Open,
    measure,
    settings_of,
)
from dataprep.manifest import Manifest
from training.config import ReaderName

TURNS = ("raw", "dataset", "loader", "ready", "stored")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("fresh", "turns"))
    parser.add_argument("seq_length", type=int)
    parser.add_argument("preset")
    parser.add_argument("rest", nargs="+")
    args = parser.parse_args()
    folder = made(args.seq_length)
    if args.kind == "fresh":
        variant, seconds, *settings = args.rest
        opened = opener(variant, folder, args.preset)
        rows = len(np.load(folder / "rows.npy", mmap_mode="r"))
        told = measure(opened, settings_of(settings), rows, float(seconds))
    else:
        seconds, rounds, *settings = args.rest
        opened_by = {name: opener(name, folder, args.preset) for name in TURNS}
        told = {
            "results": [
                by_turns(opened_by, shuffle, workers, float(seconds), int(rounds), args.seq_length)
                for shuffle, workers in settings_of(settings)
            ]
        }
    print(json.dumps(told))


def by_turns(
    opened_by: dict[str, Open],
    shuffle: bool,
    workers: int,
    seconds: float,
    rounds: int,
    seq_length: int,
) -> dict[str, object]:
    """Tokens a second of each variant, a list of one for each round.

    A loader is opened for its turn and closed after it: one that waits would read ahead, as much
    as it may, at its neighbours' cost, and have it ready for its own turn.
    """
    rates: dict[str, list[float]] = {name: [] for name in opened_by}
    for turn in range(rounds + 1):
        for name in list(opened_by)[:: -1 if turn % 2 else 1]:
            share = 0.3 if name in ("ready", "stored") else 1.0  # the others are steady
            rate = steady(opened_by[name](shuffle, workers), seconds * share) * seq_length
            if turn:  # the first one only warms up
                rates[name].append(round(rate, 1))
    return {"shuffle": shuffle, "workers": workers, "tokens_per_second": rates}


def steady(epochs: Iterable[Batches], seconds: float) -> float:
    """Rows a second, the first fifth of the time not counted.

    Both ends fall on the first batch after a moment: where batches come several at once, that is
    the one that was waited for, so neither end cuts what came together.
    """
    stream = itertools.chain.from_iterable(epochs)
    rows, limit = 0, seconds / 5
    next(stream)
    start = time.perf_counter()
    for batch in stream:
        rows += len(batch)
        now = time.perf_counter()
        if now - start >= limit:
            if limit == seconds:
                break
            rows, start, limit = 0, now, seconds
    return rows / (now - start)


def opener(variant: str, folder: Path, preset: str) -> Open:
    """The loader of a variant; what it imports is not timed."""
    if variant == "gather":
        return gather(folder / "rows.npy")
    if variant == "memcpy":
        return memcpy(folder / "rows.npy")
    openers = {"raw": raw, "dataset": dataset, "loader": loader, "ready": ready, "stored": stored}
    return openers[variant](folder / preset)


def raw(out: Path) -> Open:
    """MindDataset as its documentation has it, all epochs from one iterator."""
    import mindspore.dataset as ds

    manifest = Manifest.load(out)
    files = [str(out / shard.path) for shard in manifest.splits["train"]]
    ds.config.set_seed(SEED)

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        dataset = ds.MindDataset(
            files,
            list(manifest.columns),
            num_parallel_workers=workers,
            shuffle=ds.Shuffle.GLOBAL if shuffle else ds.Shuffle.FALSE,
        ).batch(BATCH, drop_remainder=True)
        epochs = dataset.create_tuple_iterator(num_epochs=1 << 20, output_numpy=True)
        while True:
            yield (columns[0][:, : manifest.seq_length] for columns in epochs)

    return open_loader


def dataset(out: Path) -> Open:
    """Our order as a plain MindDataset, all epochs from one iterator, like `raw`."""
    from training.data import Loader

    size = Manifest.load(out).seq_length

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        seed = SEED if shuffle else None
        plain = Loader(out, batch_size=BATCH, seed=seed, workers=workers).mind_dataset()
        epochs = plain.create_tuple_iterator(num_epochs=1 << 20, output_numpy=True)
        while True:
            yield (columns[0][:, :size] for columns in epochs)

    return open_loader


def loader(out: Path) -> Open:
    """Our loader: one endless epoch."""
    import mindspore  # noqa: F401 (so that its import is not timed: the loader imports it late)

    return _loader(out, "mindspore")


def ready(out: Path) -> Open:
    """Our loader without MindSpore."""
    return _loader(out, "direct")


def _loader(out: Path, reader: ReaderName) -> Open:
    from training.data import Loader

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        seed = SEED if shuffle else None
        with Loader(out, batch_size=BATCH, seed=seed, reader=reader, workers=workers) as batches:
            yield (batch["input_ids"] for batch in batches)

    return open_loader


def stored(out: Path) -> Open:
    """The direct reader, a permutation an epoch."""
    from dataprep.mindrecord import IndexableSource

    manifest = Manifest.load(out)
    files = [str(out / shard.path) for shard in manifest.splits["train"]]

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        rng = np.random.default_rng(SEED)
        with IndexableSource(files, list(manifest.columns)) as source:
            while True:
                order = rng.permutation(len(source)) if shuffle else np.arange(len(source))
                batches = source.batches(order, BATCH, threads=workers)
                yield (batch["input_ids"][:, : manifest.seq_length] for batch in batches)

    return open_loader


def gather(path: Path) -> Open:
    """rows[indices] of a memory map; `workers` must be 0."""

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        assert workers == 0
        rows = np.load(path, mmap_mode="r")
        rng = np.random.default_rng(SEED)
        while True:
            order = rng.permutation(len(rows)) if shuffle else np.arange(len(rows))
            yield (rows[some] for some in order.reshape(-1, BATCH))

    return open_loader


def memcpy(path: Path) -> Open:
    """Neighbouring rows in turn into one buffer; `workers` must be 0."""

    def open_loader(shuffle: bool, workers: int) -> Iterator[Batches]:
        assert workers == 0
        rows = np.load(path)
        into = np.empty((BATCH, rows.shape[1]), np.int32)

        def epoch() -> Batches:
            for at in range(0, len(rows), BATCH):
                np.copyto(into, rows[at : at + BATCH])
                yield into

        while True:
            yield epoch()

    return open_loader


if __name__ == "__main__":
    main()
