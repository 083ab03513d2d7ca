"""Proof of an output folder: every byte, every row, every label, judged by MindSpore's reader.

    files     each shard and index is there, under its name, with the hash of the manifest
    rows      MindDataset reads every row of every shard: number, columns, shapes, int32
    content   labels, masks, positions and segments, recomputed from the ids and audit/rows
    ledger    it balances, and agrees with the shards and with audit/removed

Every defect is found and named; none stops the search.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest, Shard
from dataprep.pack import IGNORE
from dataprep.trace import read_audit

Int32 = npt.NDArray[np.int32]
Rows = dict[str, Int32]
BATCH = 256
_MAX_TOKENS = 1 << 40  # of a document: keeps (document, token) in one integer


@dataclass
class Verdict:
    """What was checked and what is wrong."""

    defects: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""
    shards: int = 0
    rows: int = 0
    tokens: int = 0


def verify(out_dir: Path) -> Verdict:
    """Checks an output folder.

    Raises UserError when it is no output folder, or MindSpore, the judge, is not installed.
    """
    if not out_dir.is_dir():
        raise UserError(f"{out_dir} is not a folder; name an output folder of build_corpus")
    try:
        import mindspore.dataset  # noqa: F401
    except ImportError as e:
        raise UserError(f"verify reads with MindSpore, which cannot be imported: {e}") from e
    verdict = Verdict()
    manifest = Manifest.load(out_dir)
    ledger = Ledger()
    _check_strangers(out_dir, manifest, verdict)
    documents = _Documents(manifest)
    whole = True
    for shard in (shard for shards in manifest.splits.values() for shard in shards):
        read = _check_files(out_dir, shard, verdict)
        read = read and _check_rows(out_dir, manifest, shard, ledger, documents, verdict)
        whole &= read
        verdict.shards += 1
    _check_ledger(out_dir, manifest, ledger if whole else None, documents.count, verdict)
    _check_tokenizer(manifest, verdict)
    return verdict


def _check_strangers(out_dir: Path, manifest: Manifest, verdict: Verdict) -> None:
    """Files that the manifest does not name: a renamed shard, or one of another run."""
    paths = [shard.path for shards in manifest.splits.values() for shard in shards]
    rows = {f"audit/rows/{Path(path).stem}.parquet" for path in paths}
    known = {*paths, *(path + ".db" for path in paths), *rows}
    for folder in ("train", "eval", "audit/rows"):
        for path in sorted((out_dir / folder).glob("*")):
            if path.relative_to(out_dir).as_posix() not in known:
                verdict.defects.append(
                    f"{path} is not in the manifest: renamed, or left by another run"
                )


def _check_files(out_dir: Path, shard: Shard, verdict: Verdict) -> bool:
    """True if both files are there with the right bytes.

    Others are not read: MindSpore may crash on a data file that does not match its index.
    """
    before = len(verdict.defects)
    data = out_dir / shard.path
    index = data.with_name(data.name + ".db")
    if not data.is_file():
        verdict.defects.append(f"{data} is missing (renamed or deleted)")
        return False
    size = data.stat().st_size
    if size != shard.bytes:
        verdict.defects.append(f"{data} has {size:,} bytes, the manifest says {shard.bytes:,}")
    elif sha256_file(data) != shard.sha256:
        verdict.defects.append(f"{data} has changed bytes: its SHA-256 is not the manifest's")
    if not index.is_file():
        verdict.defects.append(f"{index} is missing: MindSpore cannot open the shard without it")
        return False
    if sha256_file(index) != shard.index_sha256:
        verdict.defects.append(f"{index} has changed bytes: its SHA-256 is not the manifest's")
    return len(verdict.defects) == before


def _check_rows(
    out_dir: Path,
    manifest: Manifest,
    shard: Shard,
    ledger: Ledger,
    documents: "_Documents",
    verdict: Verdict,
) -> bool:
    """Reads a shard and adds what it holds to `ledger` and `documents`; True if it could."""
    path = out_dir / shard.path
    name = Path(shard.path).name.removesuffix(".mindrecord")
    audit = out_dir / "audit" / "rows" / f"{name}.parquet"
    try:
        rows = _read(path, manifest)
    except (RuntimeError, ValueError, OSError) as e:
        first = " ".join(str(e).split())[:300]
        verdict.defects.append(f"{path} cannot be read by MindSpore: {first}")
        return False
    n = len(rows["input_ids"])
    verdict.rows += n
    if n != shard.rows:
        verdict.defects.append(f"{path} has {n:,} rows, the manifest says {shard.rows:,}")
    bad = _shape_defects(rows, manifest)
    if bad:
        verdict.defects.extend(f"{path}: {what}" for what in bad)
        return False
    try:
        pieces = read_audit(audit)
        documents.add(pieces)
    except (UserError, KeyError) as e:
        verdict.defects.append(f"{audit} cannot be read: {e}")
        return False
    verdict.defects.extend(f"{path}: {what}" for what in content_defects(rows, pieces, manifest))
    verdict.tokens += shard.tokens
    placed = int(np.asarray(pieces["length"]).sum())
    ledger.count("", "tokens.placed", placed)
    ledger.count("", "slots.total", rows["input_ids"].size)
    ledger.count("", "targets.trained", int((rows["labels"] != IGNORE).sum()))
    if placed != shard.tokens:
        verdict.defects.append(f"{audit} places {placed:,} tokens, the manifest {shard.tokens:,}")
    return True


class _Documents:
    """Which records of the inputs are in the shards: a byte for each."""

    def __init__(self, manifest: Manifest) -> None:
        rows = [int(told["rows"]) for told in manifest.inputs]
        self._first = dict(zip((told["path"] for told in manifest.inputs), np.cumsum([0, *rows])))
        self._rows = dict(zip(self._first, rows))
        self._seen = np.zeros(sum(rows), bool)

    def add(self, pieces: pa.Table) -> None:
        """Notes the documents of a table of audit/rows.

        Raises UserError when it names one that no input has.
        """
        name = pieces["file"].combine_chunks().dictionary_encode()
        codes, row = np.asarray(name.indices), np.asarray(pieces["source_row"])
        for code, path in enumerate(name.dictionary.to_pylist()):
            ours = row[codes == code]
            if len(ours) and not 0 <= ours.min() <= ours.max() < self._rows.get(path, 0):
                raise UserError(f"it names a record of {path} that the manifest does not know")
            if len(ours):
                self._seen[self._first[path] + ours] = True

    @property
    def count(self) -> int:
        """How many."""
        return int(self._seen.sum())


def _read(path: Path, manifest: Manifest) -> Rows:
    """All rows of one shard by MindDataset, in order: int32 [rows, length] for each column."""
    os.environ.setdefault("GLOG_v", "4")  # what is wrong is told in `defects`
    import mindspore.dataset as ds

    names = list(manifest.columns)
    data = ds.MindDataset([str(path)], columns_list=names, shuffle=False, num_parallel_workers=1)
    batches = list(data.batch(BATCH).create_dict_iterator(num_epochs=1, output_numpy=True))
    if not batches:
        raise ValueError("no rows")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names}


def _shape_defects(rows: Rows, manifest: Manifest) -> list[str]:
    found = []
    for name, length in manifest.columns.items():
        column = rows[name]
        if column.dtype != np.int32 or column.shape[1:] != (length,):
            found.append(
                f"column {name} is {column.dtype}{list(column.shape[1:])}, not int32[{length}]"
            )
    return found


def content_defects(rows: Rows, pieces: pa.Table, manifest: Manifest) -> Iterator[str]:
    """What in the columns contradicts the ids and the pieces (audit/rows), each with its first row.

    rows: int32 [n, length] for each column; pieces: columns of audit/rows of this shard.
    """
    ids = rows["input_ids"]
    row, start, length = (
        np.asarray(pieces[c]).astype(np.int64) for c in ("row", "start", "length")
    )
    n, s = ids.shape
    flat = row * s + start  # slot number of each piece's first token
    if len(flat) and (row.max() >= n or (start + length).max() > s or (np.diff(flat) <= 0).any()):
        yield "audit/rows names slots that do not exist, or not in order"
        return
    piece = np.full(n * s, -1, np.int64)
    slots = np.repeat(flat - np.cumsum(length) + length, length) + np.arange(length.sum())
    piece[slots] = np.repeat(np.arange(len(flat)), length)
    placed = piece >= 0
    if placed.sum() != length.sum():
        yield "pieces of audit/rows overlap"
        return
    tokens = ids.reshape(-1)
    wrong = placed & ((tokens < 0) | (tokens >= manifest.tokenizer.vocab_size))
    yield from _told("input_ids outside of the vocabulary", wrong, s)
    yield from _told(
        "padding that is not the pad id", ~placed & (tokens != manifest.tokenizer.pad_id), s
    )
    labels = _labels(tokens, piece, pieces, flat, length)
    yield from _told("labels that are not the next token", rows["labels"].reshape(-1) != labels, s)
    mask = (rows["labels"] != IGNORE).astype(np.int32)
    yield from _told(
        "loss_mask that contradicts labels", (rows["loss_mask"] != mask).reshape(-1), s
    )
    within = np.arange(n * s) - flat[piece] if len(flat) else np.zeros(n * s, np.int64)
    positions = within if manifest.isolate_documents else np.arange(n * s) % s
    positions = np.where(placed, positions, 0)
    wrong = rows["position_ids"].reshape(-1) != positions
    yield from _told("position_ids that do not count their document", wrong, s)
    if "actual_seq_len" in rows:
        ends = _ends(row, start + length, n, s, manifest.columns["actual_seq_len"])
        wrong = (rows["actual_seq_len"] != ends).reshape(-1)
        yield from _told(
            "actual_seq_len that are not the ends of the documents", wrong, ends.shape[1]
        )


def _labels(
    tokens: Int32,
    piece: npt.NDArray[np.int64],
    pieces: pa.Table,
    flat: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
) -> Int32:
    """Expected labels: the next token of the same document, across rows too; int32[n * S]."""
    out = np.full(len(tokens), IGNORE, np.int32)
    same = (piece[:-1] == piece[1:]) & (piece[1:] >= 0)
    out[:-1][same] = tokens[1:][same]
    # A document that goes on elsewhere: a piece that begins where this one ends. (Of a document
    # placed twice in a shard there are two such pieces, with the same tokens.)
    file = pieces["file"].combine_chunks()
    codes = np.asarray(file.indices) if pa.types.is_dictionary(file.type) else np.asarray(file)
    source, token = np.asarray(pieces["source_row"]), np.asarray(pieces["token_start"])
    _, document = np.unique(np.stack([codes, source]), axis=1, return_inverse=True)
    begins = document.reshape(-1) * _MAX_TOKENS + token
    by_begin = np.argsort(begins, kind="stable")
    at = np.searchsorted(begins[by_begin], begins + length)
    next_piece = by_begin[np.minimum(at, len(by_begin) - 1)]
    goes_on = begins[next_piece] == begins + length
    out[(flat + length - 1)[goes_on]] = tokens[flat[next_piece[goes_on]]]
    return out


def _ends(
    row: npt.NDArray[np.int64], end: npt.NDArray[np.int64], n: int, s: int, width: int
) -> Int32:
    """Expected actual_seq_len: int32 [n, width]."""
    out = np.full((n, width), s, np.int32)
    first = np.searchsorted(row, row)  # rows are sorted: index of the row's first piece
    nth = np.arange(len(row)) - first
    inner = end < s
    out[row[inner], nth[inner]] = end[inner]
    return out


def _told(what: str, wrong: npt.NDArray[np.bool_], width: int) -> Iterator[str]:
    if wrong.any():
        row, slot = divmod(int(np.argmax(wrong)), width)
        yield f"{int(wrong.sum()):,} {what}, the first in row {row}, slot {slot}"


def _check_ledger(
    out_dir: Path, manifest: Manifest, counted: Ledger | None, documents: int, verdict: Verdict
) -> None:
    """The ledger against itself, the shards (`counted`; None: not all were read) and the audit."""
    ledger = Ledger.from_json(manifest.ledger)
    verdict.defects.extend(f"ledger: {line}" for line in ledger.imbalances())
    if counted is not None:
        names = ("tokens.placed", "slots.total", "targets.trained")
        pairs = [(name, ledger.total(name), counted.total(name)) for name in names]
        for name, told, found in [
            *pairs,
            ("documents.kept", ledger.total("documents.kept"), documents),
        ]:
            if told != found:
                verdict.defects.append(f"ledger: {name} is {told:,}, the shards hold {found:,}")
    explained: Counter[str] = Counter()
    try:
        for path in sorted((out_dir / "audit" / "removed").glob("*.parquet")):
            table = read_audit(path)
            explained.update(
                f"{s}.{r}" for s, r in zip(*(table[c].to_pylist() for c in ("stage", "rule")))
            )
    except (UserError, KeyError) as e:
        verdict.defects.append(f"{out_dir / 'audit' / 'removed'}: {e}")
        return
    removed = ledger.below("documents.removed.")
    for rule in sorted({*removed, *explained}):
        if removed.get(rule, 0) != explained[rule]:
            verdict.defects.append(
                f"audit/removed explains {explained[rule]:,} documents of {removed.get(rule, 0):,} "
                f"removed by {rule}"
            )


def _check_tokenizer(manifest: Manifest, verdict: Verdict) -> None:
    path = Path(manifest.tokenizer.path)
    if not path.is_file():
        verdict.notes.append(f"tokenizer {path} is not here: its hash was not checked")
    elif sha256_file(path) != manifest.tokenizer.sha256:
        verdict.defects.append(
            f"tokenizer {path} is not the one that made the ids: SHA-256 differs"
        )
