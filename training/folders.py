"""The output folders that a loader reads: opened, checked, and agreeing with one another.

Everything that can be known to fail is found here, before a reader opens anything.
"""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dataprep.errors import UserError
from dataprep.files import fingerprint
from dataprep.manifest import Manifest
from training.config import Folder
from training.derive import Derive, Int64, needed_columns, needs_audit
from training.runs import AuditRuns

SPARE_FILES = 16  # that MindSpore, or the trainer beside it, may open besides
EARLY_FILES = 256
COPY = "copy the folder again, or build it again"


@dataclass(frozen=True)
class Split:
    """One split of one output folder."""

    out_dir: Path
    manifest: Manifest
    name: str
    """"train" or "eval"."""
    weight: float = 1.0

    @property
    def files(self) -> list[str]:
        """Its shards, in order."""
        return [str(self.out_dir / shard.path) for shard in self.manifest.splits[self.name]]

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return self.manifest.rows(self.name)

    @cached_property
    def columns(self) -> list[str]:
        """The stored columns that a batch is made of. Raises UserError as needed_columns does."""
        try:
            return needed_columns(self.manifest)
        except UserError as e:
            raise UserError(f"{self.out_dir}: {e}") from e

    @cached_property
    def starts(self) -> Int64:
        """Number of each shard's first row in the split, and the total: int64[shards + 1]."""
        shards = self.manifest.splits[self.name]
        return np.cumsum([0, *(shard.rows for shard in shards)])

    def named(self, row: int) -> str:
        """`FILE row I`, for people."""
        shard = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"{self.files[shard]} row {row - int(self.starts[shard])}"

    def derive(self, vocab_size: int | None) -> Derive:
        """What makes its rows into batches; `vocab_size`: None for the tokenizer's."""
        shards, size = self.manifest.splits[self.name], self.manifest.seq_length
        runs = AuditRuns(self.out_dir, shards, size) if needs_audit(self.manifest) else None
        limit = vocab_size or self.manifest.tokenizer.vocab_size
        return Derive(self.manifest, limit, runs, self.named)


def open_splits(
    data: str | Path | Sequence[Folder], name: str, skip_empty: bool = False
) -> list[Split]:
    """The split `name` of every folder, in the order given; files checked by name and size.

    skip_empty: leave out folders without such a split, as long as one has it. Raises UserError when
    a folder cannot be used, or two do not go together.
    """
    folders = [Folder(str(data))] if isinstance(data, str | Path) else list(data)
    if not folders or not all(isinstance(folder, Folder) for folder in folders):
        raise UserError(f"data is {data!r:.100}: give a folder, or a list of training.Folder")
    splits = []
    for folder in folders:
        out_dir = Path(folder.path)
        manifest = Manifest.load(out_dir)
        if not manifest.rows(name) and not skip_empty:
            have = ", ".join(split for split in manifest.splits if manifest.rows(split))
            raise UserError(f"{out_dir} has no split {name!r}; it has: {have or 'none'}")
        splits.append(Split(out_dir, manifest, name, folder.weight))
    splits = [split for split in splits if split.rows]
    if not splits:
        raise UserError(f"none of {', '.join(f.path for f in folders)} has a split {name!r}")
    for other in splits[1:]:
        _check_agree(splits[0], other)
    for split in splits:
        _check_files(split)
    return splits


def mix_fingerprint(splits: Sequence[Split]) -> str:
    """64 hex digits that name this data: of one folder of weight 1, its manifest's own."""
    if len(splits) == 1 and splits[0].weight == 1:
        return splits[0].manifest.fingerprint
    return fingerprint([[s.manifest.fingerprint, float(s.weight)] for s in splits])


def check_workers(workers: int) -> None:
    """Raises UserError for more workers than the machine has cores, which MindDataset refuses."""
    cores = os.cpu_count() or 1
    if not 1 <= workers <= cores:
        raise UserError(f"data_workers is {workers}: give 1 to {cores}, the cores of this machine")


def opens_early(split: Split, workers: int) -> bool:
    """Whether MindSpore's next pipeline is opened before the last one ends: when it is cheap."""
    return len(split.files) * (workers + 1) <= EARLY_FILES


def check_open_files(splits: Sequence[Split], workers: int) -> None:
    """Raises UserError when MindSpore would need more open files than the system allows.

    A pipeline keeps each shard open once for each worker, and once its index.
    """
    shards = sum(len(split.files) for split in splits)
    needed = SPARE_FILES + sum(
        len(split.files) * (workers + 1) * (1 + opens_early(split, workers)) for split in splits
    )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/dev/fd"))
    if limit != resource.RLIM_INFINITY and in_use + needed > limit:
        raise UserError(
            f"reading {shards} shards with {workers} workers keeps {needed} files open, and this "
            f"process may open {max(0, limit - in_use)} more (limit {limit}, {in_use} in use); run "
            f"`ulimit -n {in_use + needed}` before it, or set reader: direct, which keeps none open"
        )


def _check_agree(one: Split, other: Split) -> None:
    a, b = one.manifest, other.manifest
    pairs = {
        "seq_length": (a.seq_length, b.seq_length),
        "the tokenizer's sha256": (a.tokenizer.sha256, b.tokenizer.sha256),
        "the tokenizer's vocab_size": (a.tokenizer.vocab_size, b.tokenizer.vocab_size),
        "isolate_documents": (a.isolate_documents, b.isolate_documents),
    }
    for what, (here, there) in pairs.items():
        if here != there:
            raise UserError(
                f"{one.out_dir} and {other.out_dir} cannot be mixed: {what} is {here} there and "
                f"{there} here; build one of them again with the other's"
            )


def _check_files(split: Split) -> None:
    for file, shard in zip(split.files, split.manifest.splits[split.name], strict=True):
        try:
            size = os.stat(file).st_size
        except FileNotFoundError:
            raise UserError(
                f"{file} is missing, or was renamed; MindRecord files keep their names: {COPY}"
            ) from None
        except OSError as e:
            raise UserError(f"cannot read {file}: {e.strerror}") from e
        if size != shard.bytes:
            raise UserError(
                f"{file} has {size:,} bytes, the manifest says {shard.bytes:,}: cut short, or of "
                f"another run; {COPY}"
            )
        if not os.path.isfile(file + ".db"):
            raise UserError(
                f"{file}.db, the index of the shard beside it, is missing; {COPY}, or make it "
                "again by `mindprep verify --repair`"
            )
