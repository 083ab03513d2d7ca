"""An output folder, edited by somebody who renews every hash: only the content is wrong then."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.corpus import BuildConfig, build
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.mindformers import write_mindformers
from dataprep.mindrecord import ShardReader, ShardWriter, fit_layout
from dataprep.report import write_report
from dataprep.sums import change_sum

Rows = dict[str, npt.NDArray[np.int32]]
SHARD = "train/train-00001-of-00003.mindrecord"
AUDIT = "audit/rows/train-00001-of-00003.parquet"


def built(config: BuildConfig) -> Path:
    """An output folder as the command makes it."""
    return Path(str(build(config, finish=[write_mindformers(config.out), write_report]).out_dir))


@contextlib.contextmanager
def kept(out: Path) -> Iterator[None]:
    """What is done to the folder's files within is undone at the end."""
    before = {path: path.read_bytes() for path in files(out)}
    yield
    for path in files(out):
        if path not in before:
            path.unlink()
    for path, content in before.items():
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def files(out: Path) -> list[Path]:
    """All files of the folder."""
    return sorted(path for path in out.rglob("*") if path.is_file())


def edit_rows(out: Path, change: Callable[[Rows], None]) -> None:
    """Writes a shard anew with its rows changed."""
    path = out / SHARD
    with ShardReader(path) as reader:
        rows = {name: values.copy() for name, values in reader.read(0, len(reader)).items()}
        columns = dict(reader.columns)
    change(rows)
    with ShardWriter(path, columns, fit_layout(columns, 1000)) as writer:
        writer.write(rows)
    reseal(out, bytes=writer.bytes, sha256=writer.sha256, index_sha256=writer.index_sha256)


def edit_audit(out: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Writes a table of audit/rows anew with its pieces changed."""
    table = pq.read_table(out / AUDIT)
    pieces = table.to_pylist()
    change(pieces)
    pq.write_table(pa.Table.from_pylist(pieces, schema=table.schema), out / AUDIT)
    reseal(out, audit_sha256=sha256_file(out / AUDIT))


def pieces_of(out: Path) -> list[dict[str, Any]]:
    """The pieces of the shard."""
    return pq.read_table(out / AUDIT).to_pylist()


def reseal(out: Path, **fields: Any) -> None:
    """A manifest and a list of hashes that believe the shard."""
    manifest = Manifest.load(out)
    shards = [replace(s, **fields) if s.path == SHARD else s for s in manifest.splits["train"]]
    replace(manifest, splits={**manifest.splits, "train": shards}).save(out)
    for name in (SHARD, f"{SHARD}.db", AUDIT):
        change_sum(out, name, sha256_file(out / name))
