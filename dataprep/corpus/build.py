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
from dataclasses import dataclass, field
from pathlib import Path

from dataprep.corpus.config import BuildConfig
from dataprep.corpus.diary import Diary
from dataprep.corpus.lock import LOCK, exclusive
from dataprep.corpus.passes import Passes
from dataprep.corpus.plan import Plan, make_plan
from dataprep.errors import UserError
from dataprep.files import canonical_json, sync, write_error
from dataprep.ledger import Ledger
from dataprep.manifest import NAME, Manifest
from dataprep.tokens import LoadedTokenizer
from dataprep.version import __version__

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
    loaded = config.tokenizer.load()
    plan = make_plan(config)
    for file in plan.files:
        if Path(file.path).absolute().is_relative_to(config.out):
            raise UserError(f"{file.path} lies inside of out_dir, which a build replaces; move it")
    size = sum(file.size for file in plan.files)
    finished = _existing(config, plan, loaded)
    if finished is not None:
        return BuildResult(config.out, finished, size)
    _make_folders(config)
    with ExitStack() as stack:
        stack.enter_context(exclusive(config.work))
        stack.enter_context(exclusive(config.building))
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


def _existing(config: BuildConfig, plan: Plan, loaded: LoadedTokenizer) -> Manifest | None:
    """The manifest of the same run if it is complete; None when there is work to do.

    Raises UserError when the folder holds something else and `overwrite` is off.
    """
    if not config.out.exists() or config.out.is_dir() and not any(config.out.iterdir()):
        return None
    try:
        manifest = Manifest.load(config.out)
    except UserError as e:
        if config.overwrite and (config.out / NAME).is_file():
            return None
        raise UserError(f"out_dir: {e}. Choose another out_dir") from e
    content = canonical_json(config.content())
    inputs = [(f["path"], f["bytes"]) for f in manifest.inputs]
    if (
        canonical_json(manifest.config) == content
        and manifest.tokenizer == loaded.info
        and manifest.versions["mindprep"] == __version__
        and inputs == [(f.path, f.size) for f in plan.files]
    ):
        return manifest
    if config.overwrite:
        return None
    raise UserError(
        f"out_dir: {config.out} holds another run (its config, inputs or tokenizer differ); "
        "choose another out_dir, or set overwrite: true to replace it"
    )


def _make_folders(config: BuildConfig) -> None:
    for folder in (config.work, config.building):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable").touch()
            (folder / ".writable").unlink()
        except OSError as e:
            raise write_error(folder, e) from e


def _publish(config: BuildConfig, manifest: Manifest, outputs: set[Path]) -> None:
    """Manifest last, then one rename: the output folder appears complete."""
    building, out = config.building, config.out
    for folder in ("train", "eval", "audit/rows"):
        for path in (building / folder).glob("*"):
            if path.relative_to(building) not in outputs:
                path.unlink()  # of an interrupted run with another config
        if (building / folder).is_dir() and not any((building / folder).iterdir()):
            (building / folder).rmdir()
    manifest.save(building)
    (building / LOCK).unlink()
    old = out.with_name(out.name + ".replaced")
    try:
        shutil.rmtree(old, ignore_errors=True)
        if out.exists():
            os.replace(out, old)
        os.replace(building, out)
        sync(out.parent)
    except OSError as e:
        raise write_error(out, e) from e
    shutil.rmtree(old, ignore_errors=True)
