"""From a row back to its documents, and from a document to its fate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.errors import UserError
from dataprep.manifest import Manifest, Shard

IGNORE = -100  # label of a slot that trains nothing
Row = Mapping[str, npt.NDArray[np.int32]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """A run of one document's tokens in one row."""

    shard: str
    row: int
    start: int
    length: int
    file: str
    source_row: int
    token_start: int


@dataclass(frozen=True)
class Fate:
    """What became of a document: its places, or why it was removed."""

    pieces: list[Piece]
    removed: dict[str, Any] | None
    """stage, rule, value, threshold, duplicate_of, similarity."""


def find_shard(manifest: Manifest, number: int, split: str = "train") -> Shard:
    """Shard `number` of a split. Raises UserError when there is none."""
    shards = manifest.splits.get(split)
    if shards is None:
        raise UserError(f"there is no split {split!r}; there is: {', '.join(manifest.splits)}")
    if not 0 <= number < len(shards):
        raise UserError(f"there is no shard {number} in {split}: it has {len(shards)}, from 0 on")
    return shards[number]


def check_row(shard: Shard, row: int) -> None:
    """Raises UserError when the shard has no such row."""
    if not 0 <= row < shard.rows:
        raise UserError(f"{shard.path} has no row {row}: it has {shard.rows:,}, from 0 on")


def row_pieces(out_dir: Path, shard: Shard, row: int) -> list[Piece]:
    """The documents of one row, in order."""
    check_row(shard, row)
    table = read_audit(_audit(out_dir, shard), pc.field("row") == row)
    return [Piece(**piece) for piece in table.sort_by("start").to_pylist()]


def stored_targets(row: Row, seq_length: int) -> Mask | None:
    """bool [S]: whose next token is a target, as a row's own columns say; None: they do not say.

    `row`: the stored columns of one row, of any preset. Slots count as in input_ids, so the target
    of slot j is the token of slot j + 1. Raises UserError when the segments do not fit the row.
    """
    if "loss_mask" in row:
        return row["loss_mask"] != 0
    if "labels" in row:  # of S + 1 slots: a target keeps its own place
        return (row["labels"] != IGNORE)[-seq_length:]
    if "segments" not in row:
        return None
    # Within a run, every token but the first is the target of the one before.
    lengths = row["segments"][row["segments"] > 0]
    if lengths.sum() > seq_length + 1:
        raise UserError(f"a row has segments of {lengths.sum():,} tokens; run verify")
    target = np.zeros(seq_length + 1, np.bool_)
    target[: lengths.sum()] = True
    target[np.cumsum(lengths) - lengths] = False
    return target[1:]


def audited_targets(out_dir: Path, shard: Shard, pieces: Sequence[Piece], seq_length: int) -> Mask:
    """bool [S]: whose next token is one of the same document, by audit/rows alone.

    `pieces`: those of the row. The last may go on in another row.
    """
    target = np.zeros(seq_length, np.bool_)
    for piece in pieces:
        end = piece.start + piece.length
        target[piece.start : end - 1] = True
        if end == seq_length:
            at = pc.field("token_start") == piece.token_start + piece.length
            same = (pc.field("file") == piece.file) & (pc.field("source_row") == piece.source_row)
            target[end - 1] = len(read_audit(_audit(out_dir, shard), at & same)) > 0
    return target


def document_fate(out_dir: Path, manifest: Manifest, file: str, row: int) -> Fate:
    """What became of record `row` (0-based) of `file`, named as in the manifest, or by its end.

    Raises UserError when the file was no input, or has no such record.
    """
    name, records = _find_input(manifest, file)
    if not 0 <= row < records:
        raise UserError(f"{name} has no record {row}: it has {records:,}, from 0 on")
    places = (pc.field("file") == name) & (pc.field("source_row") == row)
    pieces: list[Piece] = []
    for shards in manifest.splits.values():
        for shard in shards:
            found = read_audit(_audit(out_dir, shard), places)
            pieces.extend(Piece(**piece) for piece in found.to_pylist())
    pieces.sort(key=lambda piece: piece.token_start)
    gone = (pc.field("file") == name) & (pc.field("row") == row)
    removed = [
        row
        for path in sorted((out_dir / "audit" / "removed").glob("*.parquet"))
        for row in read_audit(path, gone).to_pylist()
    ]
    return Fate(pieces, removed[0] if removed else None)


def read_audit(
    path: Path, rows: pc.Expression | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """A table of the audit, all of it or some rows and columns.

    Names that repeat come as dictionaries. Raises UserError when it is damaged.
    """
    try:
        table = pq.read_table(
            path,
            columns=None if columns is None else list(columns),
            filters=rows,
            read_dictionary=["shard", "file", "stage", "rule"],
        )
        return table.unify_dictionaries()
    except (OSError, pa.ArrowException, KeyError) as e:
        raise UserError(f"{path} cannot be read: {e}; run verify, or build again") from e


def _find_input(manifest: Manifest, file: str) -> tuple[str, int]:
    exact = [f for f in manifest.inputs if f["path"] == file]
    found = exact or [f for f in manifest.inputs if f["path"].endswith("/" + file)]
    if len(found) != 1:
        what = "is no input of this run" if not found else "names several inputs; give more of it"
        names = ", ".join(f["path"] for f in (found or manifest.inputs)[:5])
        raise UserError(f"{file} {what}: {names}")
    return found[0]["path"], found[0]["rows"]


def _audit(out_dir: Path, shard: Shard) -> Path:
    return out_dir / "audit" / "rows" / (Path(shard.path).stem + ".parquet")
