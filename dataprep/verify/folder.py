"""verify: an output folder against its manifest, and every row against its ids and audit/rows."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dataprep.errors import UserError
from dataprep.manifest import Manifest, Shard
from dataprep.mindrecord import ShardReader
from dataprep.verify.columns import Special, preset_columns
from dataprep.verify.content import Content
from dataprep.verify.files import (
    Known,
    audit_path,
    check_other_files,
    check_shard_files,
    file_defect,
    open_folder,
    stranger_defects,
)
from dataprep.verify.pieces import Inconsistent, Pieces, read_pieces
from dataprep.verify.repair import repair_folder
from dataprep.verify.rows import (
    Rows,
    Unreadable,
    by_mindspore,
    by_ours,
    mindspore_version,
    shape_defects,
)
from dataprep.verify.tokenizer import check_tokenizer
from dataprep.verify.totals import Totals, removed_defects
from dataprep.verify.verdict import Progress, Steps, Verdict


def verify(
    out_dir: Path, *, fast: bool = False, repair: bool = False, progress: Progress | None = None
) -> Verdict:
    """Checks an output folder; every defect is found and named, none stops the search.

    fast: rows are read by our own reader, and MindSpore is not needed; repair: what can be mended
    is, before anything is checked. Memory: some numbers for each piece of one shard.

    Raises UserError when it is no output folder, its manifest is damaged, MindSpore, the judge, is
    not installed, or a repair cannot be written.
    """
    start = time.monotonic()
    if not out_dir.is_dir():
        what = "is not a folder" if out_dir.exists() else "does not exist"
        raise UserError(f"{out_dir} {what}; name an output folder of build_corpus, or a file")
    verdict = Verdict()
    if fast:
        verdict.reader = "mindprep's own reader"
        verdict.notes.append("--fast: MindSpore's reader was not asked")
    else:
        verdict.reader = f"MindSpore {mindspore_version()}"
    manifest = Manifest.load(out_dir)
    folder = open_folder(out_dir, manifest)
    if repair:
        repair_folder(folder, verdict)
        folder = open_folder(out_dir, manifest)
    verdict.defects.extend(stranger_defects(folder))
    verdict.defects.extend(preset_defects(manifest))
    check_other_files(folder, verdict)
    special = check_tokenizer(manifest, verdict)
    shards = [shard for split in manifest.splits.values() for shard in split]
    steps = Steps(sum(shard.bytes for shard in shards), progress)
    check = _Shards(out_dir, manifest, special, fast, verdict, steps)
    for shard in shards:
        check(shard)
    steps.end()
    verdict.defects.extend(check.totals.defects(whole=not verdict.unread))
    verdict.defects.extend(removed_defects(out_dir, manifest))
    verdict.seconds = time.monotonic() - start
    return verdict


def preset_defects(manifest: Manifest) -> list[str]:
    """Where the manifest's columns are not those of its preset."""
    want = preset_columns(
        manifest.preset, manifest.columns, manifest.seq_length, manifest.isolate_documents
    )
    if not want:
        return [f"manifest.json names a preset {manifest.preset!r} that this version does not know"]
    if want != manifest.columns or 0 in want.values():
        return [
            f"manifest.json has columns {manifest.columns}, which are not those of its preset "
            f"{manifest.preset!r} for rows of {manifest.seq_length}: {want}"
        ]
    return []


class _Shards:
    """Checks one shard after another."""

    def __init__(
        self,
        out_dir: Path,
        manifest: Manifest,
        special: Special,
        fast: bool,
        verdict: Verdict,
        steps: Steps,
    ) -> None:
        self.totals = Totals(manifest)
        self._out_dir, self._manifest, self._special = out_dir, manifest, special
        self._read: Callable[[Path, Mapping[str, int]], Iterator[Rows]] = (
            by_ours if fast else by_mindspore
        )
        self._known_preset = not preset_defects(manifest)
        self._verdict, self._steps = verdict, steps

    def __call__(self, shard: Shard) -> None:
        """Files, then rows, if the files are what the manifest says."""
        self._steps.begin(shard.bytes)
        self._verdict.shards += 1
        whole = check_shard_files(self._out_dir, shard, self._verdict, self._steps.hashed)
        pieces = self._pieces(shard)
        if not (whole and self._rows(shard, pieces)):
            self._verdict.unread += 1

    def _pieces(self, shard: Shard) -> Pieces | None:
        """audit/rows of a shard; None when it is missing or wrong, which is told."""
        name = audit_path(shard)
        path = self._out_dir / name
        found = file_defect(self._out_dir, name, Known(shard.audit_sha256))
        try:
            if not found:
                s, firsts = self._manifest.seq_length, self.totals.firsts
                pieces = read_pieces(path, path.stem, shard.rows, s, firsts)
                if pieces.tokens == shard.tokens:
                    return pieces
                found = f"{path} places {pieces.tokens:,} tokens, the manifest {shard.tokens:,}"
        except UserError as e:
            found = str(e)
        except Inconsistent as e:
            found = f"{path} is wrong: {e}"
        self._verdict.defects.append(found)
        return None

    def _rows(self, shard: Shard, pieces: Pieces | None) -> bool:
        """Reads all rows; True if they could be read and compared."""
        path = self._out_dir / shard.path
        columns = self._manifest.columns
        content = Content(self._manifest, pieces, self._special) if pieces else None
        if not self._known_preset:
            content = None
        done, bad = 0, self._structure(path)
        try:
            for rows in self._read(path, columns) if not bad else ():
                bad = shape_defects(rows, columns)
                n = len(next(iter(rows.values())))
                if bad or done + n > shard.rows:
                    done += n
                    break
                if content:
                    content.add(done, rows)
                done += n
                self._steps.read(done / shard.rows)
        except Unreadable as e:
            bad.append(str(e))
        if not bad and done != shard.rows:
            more = "or more " if done > shard.rows else ""
            bad.append(f"has {done:,} {more}rows, the manifest says {shard.rows:,}")
        if content and pieces and not bad:
            bad = content.defects()
            self.totals.add(pieces, done)
            self._verdict.tokens += pieces.tokens
            complete = True
        else:
            complete = False
        self._verdict.rows += done
        self._verdict.bytes += shard.bytes
        self._verdict.defects.extend(f"{path}: {what}" for what in bad)
        return complete

    def _structure(self, path: Path) -> list[str]:
        """What the header says, against the manifest: MindSpore shows the asked columns only."""
        try:
            with ShardReader(path) as reader:
                have = {name: reader.columns.get(name, "no int32 array") for name in reader.schema}
        except UserError as e:
            return [str(e)]
        want = self._manifest.columns
        return [
            f"column {name} has length {have.get(name, 'none')}, the manifest says "
            f"{want.get(name, 'none')}"
            for name in sorted({*have, *want})
            if have.get(name) != want.get(name)
        ]
