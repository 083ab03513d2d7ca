"""From an output folder to batches: MindDataset over the manifest's shards, in order.

A batch is a dict of int32 [B, S] arrays. Beside the columns that are stored, it has `segments`:
which document of its row a slot belongs to. With S = 12, documents of 5 and 3 tokens, and padding,

    actual_seq_len  5  8 12 12 …                  cumulative ends, padded with S
    segments        0 0 0 0 0 1 1 1 2 2 2 2       padding is a segment of its own

The state of reading is one number, the rows consumed. An epoch gives whole batches only; the rows
left over at its end are not read (`Epoch.dropped_rows`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import numpy.typing as npt

from dataprep.errors import UserError
from dataprep.manifest import Manifest

Batch = dict[str, npt.NDArray[np.int32]]
COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
ENDS = "actual_seq_len"
ENDLESS = 2**31 - 1  # epochs; -1, MindSpore's own word for it, cannot be resumed


@dataclass(frozen=True)
class Epoch:
    """One pass over the train split, as known before it starts."""

    steps: int
    rows: int
    """Rows it reads: steps x rows_per_step."""
    dropped_rows: int
    """Rows that do not fill a last step and are not read."""


def plan_epoch(manifest: Manifest, rows_per_step: int) -> Epoch:
    """Raises UserError when the train split has fewer rows than one step takes."""
    have = manifest.rows("train")
    if have < rows_per_step:
        raise UserError(
            f"the train split has {have} rows and one step takes {rows_per_step} (batch_size x "
            "micro_batch_num); make the step smaller or the data larger"
        )
    steps = have // rows_per_step
    return Epoch(steps, steps * rows_per_step, have % rows_per_step)


def train_batches(
    out_dir: Path,
    manifest: Manifest,
    rows_per_step: int,
    vocab_size: int,
    shuffle_seed: int | None = None,
    consumed_rows: int = 0,
) -> Iterator[Batch]:
    """Endless batches of `rows_per_step` rows, epoch after epoch.

    With a shuffle seed, each epoch has another order, which depends on seed and epoch alone.
    `consumed_rows`, a multiple of `rows_per_step`, continues where an earlier reader stopped;
    the rows before it are skipped, not read. Raises UserError when a shard is missing or damaged,
    or an id is outside the vocabulary.
    """
    plan_epoch(manifest, rows_per_step)
    dataset = _dataset(out_dir, manifest, "train", shuffle_seed).batch(rows_per_step, True)
    dataset.set_init_step(consumed_rows // rows_per_step)
    for raw in _read(dataset, ENDLESS, out_dir):
        yield _finish(raw, manifest, vocab_size, f"train rows after {consumed_rows}")
        consumed_rows += rows_per_step


def eval_batches(
    out_dir: Path, manifest: Manifest, batch_size: int, limit: int, vocab_size: int
) -> Iterator[Batch]:
    """The first `limit` batches of the eval split, in order.

    A last batch that is not full is filled with rows without targets, so that every row counts
    and all batches have one shape. Raises UserError as `train_batches` does.
    """
    dataset = _dataset(out_dir, manifest, "eval", None).batch(batch_size)
    for raw in islice(_read(dataset, 1, out_dir), limit):
        batch = _finish(raw, manifest, vocab_size, "the eval split")
        missing = batch_size - len(batch["input_ids"])
        yield {name: np.pad(rows, ((0, missing), (0, 0))) for name, rows in batch.items()}


def segments_from_ends(ends: npt.NDArray[np.int32], seq_length: int) -> npt.NDArray[np.int32]:
    """`actual_seq_len` [B, K] -> `segments` [B, S]: how many documents end at or before a slot."""
    borders = np.zeros((len(ends), seq_length + 1), np.int32)
    np.add.at(borders, (np.arange(len(ends))[:, None], ends), 1)
    return borders.cumsum(axis=1, dtype=np.int32)[:, :seq_length]


def _dataset(
    out_dir: Path, manifest: Manifest, split: str, shuffle_seed: int | None
) -> ds.MindDataset:
    """The rows of a split; the file list is explicit, since one name alone also loads siblings."""
    needed = (*COLUMNS, ENDS) if manifest.isolate_documents else COLUMNS
    missing = [name for name in needed if name not in manifest.columns]
    if missing:
        raise UserError(
            f"{out_dir} was written with columns {manifest.preset!r}, without "
            f"{', '.join(missing)}; build it with write.columns: mindformers"
        )
    files = manifest.files(out_dir, split)
    for file, shard in zip(files, manifest.splits[split], strict=True):
        size = Path(file).stat().st_size if Path(file).is_file() else None
        if size != shard.bytes or not Path(file + ".db").is_file():
            raise UserError(f"{file} or its .db is missing or cut short; build or copy it again")
    if shuffle_seed is not None:
        ds.config.set_seed(shuffle_seed)  # the only way to give MindDataset a seed
    shuffle = ds.Shuffle.FALSE if shuffle_seed is None else ds.Shuffle.GLOBAL
    # One worker gives thousands of rows a second, and more than the machine has cores is an error.
    return ds.MindDataset(
        files, columns_list=list(manifest.columns), num_parallel_workers=1, shuffle=shuffle
    )


def _read(dataset: ds.BatchDataset, epochs: int, out_dir: Path) -> Iterator[Batch]:
    """The stored columns, epoch after epoch; MindSpore's long errors become one line."""
    try:
        reader = dataset.create_dict_iterator(num_epochs=epochs, output_numpy=True)
        for _ in range(epochs):
            yield from reader
    except RuntimeError as e:
        cause = (str(e).partition("[ERROR] ")[2] or str(e)).splitlines()[0]
        raise UserError(f"cannot read the shards of {out_dir}: {cause} Run verify on it.") from e


def _finish(raw: Batch, manifest: Manifest, vocab_size: int, where: str) -> Batch:
    """Checks the ids and derives the segments."""
    batch = {name: raw[name] for name in COLUMNS}
    for name, ids in (
        ("input_ids", batch["input_ids"]),
        ("labels", batch["labels"][batch["loss_mask"] == 1]),
    ):
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        if wrong.size:
            raise UserError(
                f"{name} has the id {wrong[0]} ({where}), outside the vocabulary of {vocab_size}; "
                "raise model.vocab_size, or build the data again if it is below 0"
            )
    batch["segments"] = (
        segments_from_ends(raw[ENDS], manifest.seq_length)
        if manifest.isolate_documents
        else np.zeros_like(batch["input_ids"])
    )
    return batch
