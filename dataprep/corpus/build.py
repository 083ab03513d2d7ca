"""The build: raw text to an output folder, pass by pass.

PASS A  map     split      -> read -> clean -> sign     cleaned split, signatures, removed
        global  signatures -> who stays                 decisions
PASS B  map     cleaned    -> tokenize                  spill, by output shard
PASS C  reduce  shard      <- its slice of every spill  MindRecord
        global  audit, report, manifest; one rename publishes it all
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dataprep.corpus.config import BuildConfig
from dataprep.corpus.diary import Diary
from dataprep.corpus.lock import LOCK, exclusive
from dataprep.corpus.passes import Passes
from dataprep.corpus.plan import Plan, make_plan
from dataprep.errors import UserError
from dataprep.files import (
    TMP,
    canonical_json,
    read_json,
    sync,
    unfinished,
    write_error,
    write_json,
)
from dataprep.ledger import Ledger
from dataprep.manifest import NAME, Manifest
from dataprep.tokens import LoadedTokenizer
from dataprep.version import __version__

RUN = "run.json"  # whose output this is: see _identity
ROWS, REMOVED = "audit/rows", "audit/removed"

Finish = Callable[[Manifest, Path], None]


@dataclass(frozen=True)
class BuildResult:
    """What a build did."""

    out_dir: Path
    manifest: Manifest
    input_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Pass -> seconds; empty when the output was there already."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run."""
        return Ledger.from_json(self.manifest.ledger)


def build(config: BuildConfig, finish: Sequence[Finish] = ()) -> BuildResult:
    """Builds a corpus; resumes what an earlier, interrupted run of the same config has done.

    `finish`: functions that add files (a report) to the folder before it is published.
    Raises UserError for anything wrong with inputs, config, folders or disk.
    """
    _recover(config.out)
    loaded = config.tokenizer.load()
    plan = make_plan(config)
    for path in (config.tokenizer.path, *(file.path for file in plan.files)):
        if Path(path).resolve().is_relative_to(config.out):
            raise UserError(f"{path} lies inside of out_dir, which a build replaces; move it")
    size = sum(file.size for file in plan.files)
    identity = _identity(config, plan, loaded)
    finished = _existing(config, identity)
    if finished is not None:
        return BuildResult(config.out, finished, size)
    _make_folders(config)
    with ExitStack() as stack:
        stack.enter_context(exclusive(config.work))
        stack.enter_context(exclusive(config.building))
        _own(config.building, identity)
        diary = stack.enter_context(Diary(config))
        passes = Passes(config, plan, loaded)
        with config.engine.start() as engine:
            seconds = passes.run(diary.watch(engine.map))
        start = time.monotonic()
        manifest = passes.manifest()
        passes.write_audit()
        for step in finish:
            step(manifest, config.building)
        _publish(config, manifest, passes.outputs())
        seconds["publish"] = time.monotonic() - start
        diary.finished(seconds)
    return BuildResult(config.out, manifest, size, seconds)


def _identity(config: BuildConfig, plan: Plan, loaded: LoadedTokenizer) -> dict[str, Any]:
    """What makes a run this run: config, inputs as they are now, tokenizer, version."""
    return {
        "config": config.content(),
        "inputs": [[f.path, f.size, f.mtime_ns] for f in plan.files],
        "tokenizer": asdict(loaded.info),
        "version": __version__,
    }


def _recover(out: Path) -> None:
    """Puts an earlier output back that was moved aside by a run killed before its last rename.

    Raises UserError when something else has that name, before any work is done.
    """
    old = _aside(out)
    if old.exists() and not (old / NAME).is_file():
        raise UserError(f"{old} is in the way and not an output folder; move or remove it")
    if old.exists() and not out.exists():
        os.replace(old, out)


def _aside(out: Path) -> Path:
    """Where an earlier output waits while the new one takes its place."""
    return out.with_name(out.name + ".replaced")


def _existing(config: BuildConfig, identity: dict[str, Any]) -> Manifest | None:
    """The manifest of the same run if it is complete; None when there is work to do.

    Raises UserError when the folder holds something else and `overwrite` is off.
    """
    out = config.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        manifest = Manifest.load(out)
        same = canonical_json(read_json(out / RUN)) == canonical_json(identity)
        missing = _missing(out, manifest)
    except UserError as e:
        if config.overwrite and (out / NAME).is_file():
            return None
        raise UserError(f"out_dir: {e}. Choose another out_dir") from e
    if same and not missing:
        return manifest
    if config.overwrite:
        return None
    what = (
        f"is damaged: {missing} is missing or cut short"
        if same
        else "holds another run (its config, inputs or tokenizer differ)"
    )
    raise UserError(
        f"out_dir: {out} {what}; choose another out_dir, or set overwrite: true to replace it"
    )


def _missing(out: Path, manifest: Manifest) -> str:
    """The first file of an output folder that is not there whole, or ""."""
    shards = [shard for split in manifest.splits.values() for shard in split]
    for shard in shards:
        data, rows = out / shard.path, out / ROWS / (Path(shard.path).stem + ".parquet")
        if not data.is_file() or data.stat().st_size != shard.bytes:
            return shard.path
        if not data.with_name(data.name + ".db").is_file():
            return shard.path + ".db"
        if not rows.is_file():
            return str(rows.relative_to(out))
    return "" if list((out / REMOVED).glob("*.parquet")) else REMOVED


def _own(building: Path, identity: dict[str, Any]) -> None:
    """Makes the growing output this run's: what another run has left there is removed.

    Raises UserError when the folder is nobody's and not empty.
    """
    owner = building / RUN
    for left_over in building.glob(f"*{TMP}"):  # of a run that was killed: we hold the lock
        left_over.unlink()
    others = [path for path in building.iterdir() if path.name not in (LOCK, RUN)]
    if others and not owner.is_file():
        raise UserError(f"{building} holds files that no run has made; move or remove it")
    if owner.is_file():
        try:
            if canonical_json(read_json(owner)) == canonical_json(identity):
                return
        except UserError:
            pass  # half of a file: of a run that is not this one, for all we know
    for path in others:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    write_json(owner, identity)


def _make_folders(config: BuildConfig) -> None:
    for folder in (config.work, config.building):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = unfinished(folder / "writable")
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise write_error(folder, e) from e


def _publish(config: BuildConfig, manifest: Manifest, outputs: set[Path]) -> None:
    """Manifest last, then one rename: the output folder appears complete."""
    building, out = config.building, config.out
    for folder in ("train", "eval", ROWS):
        for path in (building / folder).glob("*"):
            if path.relative_to(building) not in outputs:
                path.unlink()  # unfinished, of an attempt that was killed
    lost = next((path for path in sorted(outputs) if not (building / path).is_file()), None)
    if lost:
        raise UserError(f"{building / lost} vanished while the run went on; run again")
    manifest.save(building)
    (building / LOCK).unlink()
    old = _aside(out)
    try:
        if old.exists():
            shutil.rmtree(old)
        if out.exists():
            os.replace(out, old)
        os.replace(building, out)
        sync(out.parent)
        if old.exists():
            shutil.rmtree(old)
    except OSError as e:
        raise write_error(out, e) from e
