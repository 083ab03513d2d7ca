"""The build: raw text to an output folder, pass by pass.

PASS A  map     split      -> read -> clean -> sign     cleaned split, signatures, removed
        global  signatures -> who stays                 decisions
PASS B  map     cleaned    -> tokenize                  spill, by output shard
PASS C  reduce  shard      <- its slice of every spill  MindRecord
        global  audit, report, manifest; one rename publishes it all
"""

import os
import platform
import shutil
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.corpus import audit, decide, pass_a, pass_b, pass_c
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.plan import Plan, make_plan
from dataprep.engine import LocalEngine, Task
from dataprep.errors import UserError
from dataprep.files import canonical_json, sync, write_error
from dataprep.ledger import Ledger
from dataprep.manifest import NAME, Manifest, Shard
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
    passes = _Passes(config, plan, loaded)
    with config.engine.start() as engine:
        passes.run(engine)
    manifest = passes.manifest()
    start = time.monotonic()
    passes.write_audit()
    for step in finish:
        step(manifest, config.building)
    _publish(config, manifest, passes.outputs())
    passes.seconds["publish"] = time.monotonic() - start
    return BuildResult(config.out, manifest, size, passes.seconds)


class _Passes:
    """The passes of one run, and what each leaves for the next."""

    def __init__(self, config: BuildConfig, plan: Plan, loaded: LoadedTokenizer) -> None:
        self.config, self.plan, self.loaded = config, plan, loaded
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        if loaded.lossy:
            self.notes.append(f"the tokenizer loses text: {loaded.lossy}")

    def run(self, engine: LocalEngine) -> None:
        config, plan = self.config, self.plan
        self.read = pass_a.tasks(config, plan)
        self.read_results = self._pass(engine, "A read, clean, sign", self.read)
        records = [0] * len(plan.splits)
        for result in self.read_results:
            self.notes.extend(result["warnings"])
            for index, n in result["records"].items():
                records[int(index)] = n
        self.records = records
        self.decide = decide.task(config, plan, self.read, records)
        (self.decided,) = self._pass(engine, "dedup", [self.decide])
        self.notes.extend(self.decided["warnings"])
        self._check_survivors()
        self.tokenize = pass_b.tasks(config, self.read, self.decide, self.decided)
        self.spilled = self._pass(engine, "B tokenize", self.tokenize)
        if not any(result["slices"] for result in self.spilled):
            raise UserError(self._nothing_left())
        self.write = pass_c.tasks(
            config, plan, self.decided, self.tokenize, self.spilled, self.loaded.info.pad_id
        )
        self.written = self._pass(engine, "C pack, write", self.write)

    def _pass(self, engine: LocalEngine, label: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        start = time.monotonic()
        results = engine.map(label, tasks)
        self.seconds[label] = time.monotonic() - start
        return results

    def _check_survivors(self) -> None:
        if not self.decided["starts"][-1]:
            raise UserError(self._nothing_left())
        if self.decided["shards"] < self.config.write.shards:
            self.notes.append(
                f"wrote {self.decided['shards']} train shards, not {self.config.write.shards}: "
                "there are no more documents"
            )
        if self.config.eval.fraction and not self.decided["eval_shards"]:
            self.notes.append(
                f"no eval split: eval.fraction = {self.config.eval.fraction} of the documents kept "
                "is less than one"
            )

    def _nothing_left(self) -> str:
        ledger = self.ledger()
        reasons = ledger.below("documents.removed.")
        told = ", ".join(f"{n:,} {reason}" for reason, n in list(reasons.items())[:6])
        return (
            f"no document is left of {ledger.total('documents.read'):,} read "
            f"(removed: {told or 'none'}); loosen the rules or check text_key and format"
        )

    def ledger(self) -> Ledger:
        """The sum over all passes that have run."""
        results = [*self.read_results, self.decided, *getattr(self, "spilled", [])]
        results += getattr(self, "written", [])
        return Ledger().add(Ledger.from_json(result["ledger"]) for result in results)

    def manifest(self) -> Manifest:
        """What the output folder holds. Raises UserError when the ledger does not balance."""
        ledger = self.ledger()
        wrong = ledger.imbalances()
        if wrong:
            raise UserError(
                f"the ledger does not balance: {'; '.join(wrong)}; this is a defect of mindprep, "
                "nothing was published"
            )
        splits: dict[str, list[Shard]] = {}
        for result in self.written:
            splits.setdefault(result["split"], []).append(Shard(**result["shard"]))
        files = self.plan.file_of_split()
        rows = np.bincount(files, self.records, minlength=len(self.plan.files)).astype(int)
        return Manifest(
            seq_length=self.config.pack.seq_length,
            preset=self.config.write.columns,
            columns=self.config.pack.columns(),
            isolate_documents=self.config.pack.isolate_documents,
            tokenizer=self.loaded.info,
            splits=splits,
            ledger=ledger.to_json(),
            inputs=_inputs(self.plan, rows.tolist()),
            config=self.config.content(),
            versions=_versions(),
            notes=self.notes,
        )

    def write_audit(self) -> None:
        folder = self.config.building / "audit" / "removed"
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted run with another config
        audit.write_removed(
            folder,
            [file.path for file in self.plan.files],
            self.decide,
            self.decided["starts"],
            self.read,
            self.tokenize,
            self.config.dedup.threshold,
        )

    def outputs(self) -> set[Path]:
        """Files of pass C, relative to the output folder."""
        out = set()
        for task in self.write:
            work = task.work
            assert isinstance(work, pass_c.PackAndWrite)
            shard = Path(work.split) / f"{work.name}.mindrecord"
            rows = Path("audit/rows") / f"{work.name}.parquet"
            out |= {shard, shard.with_name(shard.name + ".db"), rows}
        return out


def _inputs(plan: Plan, rows: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"path": f.path, "source": f.source, "format": f.format, "bytes": f.size, "rows": n}
        for f, n in zip(plan.files, rows)
    ]


def _versions() -> dict[str, str]:
    return {
        "mindprep": __version__,
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }


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
