"""One run: from its steps to an output folder under its name.

lock ─ own ─ steps, each a list of tasks ─ audit ─ manifest ─ report ─ publish
"""

import platform
import time
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dataprep.corpus import output
from dataprep.corpus.config import Target, inside
from dataprep.corpus.diary import Diary
from dataprep.corpus.lock import exclusive
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest, Shard, TokenizerInfo
from dataprep.pack import preset_name
from dataprep.storage import Place, absolute
from dataprep.version import __version__

Result = dict[str, Any]
Step = tuple[str, list[Task]]
ADVISED_BYTES = 20_000_000_000  # of a MindRecord file, MindSpore's advice
Finish = Callable[[Manifest, Place], None]


@dataclass(frozen=True)
class BuildResult:
    """What a build did."""

    out_dir: Place
    manifest: Manifest
    input_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Pass -> seconds; empty when the output was there already."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run."""
        return Ledger.from_json(self.manifest.ledger)


class InputFile(Protocol):
    """A file as it was when the run was planned."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str: ...


class Job(Protocol):
    """What one kind of run does, and what it leaves to tell."""

    @property
    def config(self) -> Target: ...
    @property
    def info(self) -> TokenizerInfo: ...

    notes: list[str]
    """What a person should know."""
    written: list[Result]
    """Of the tasks of pass C, in the end."""

    def steps(self) -> Generator[Step, list[Result], None]:
        """Yields each pass as (label, tasks) and wants its results sent back."""
        ...

    def ledger(self) -> Ledger:
        """The sum over all passes that have run."""
        ...

    def inputs(self) -> list[dict[str, Any]]:
        """For the manifest."""
        ...

    def write_audit(self) -> None:
        """Writes audit/removed of the growing output."""
        ...


def run_identity(config: Target, files: Sequence[InputFile], info: TokenizerInfo) -> dict[str, Any]:
    """What makes a run this run: config, inputs as they are now, tokenizer, version."""
    return {
        "config": config.content(),
        "inputs": [[f.path, f.size, f.version] for f in files],
        "tokenizer": asdict(info),
        "version": __version__,
    }


def produce(
    job: Job, files: Sequence[InputFile], others: Sequence[str], finish: Sequence[Finish]
) -> BuildResult:
    """Does a job, or what an interrupted run has left of it, and publishes its output.

    `files`: what it reads; `others`: paths of other files it needs; `finish`: functions that add
    files (a report) to the folder before it is published.
    Raises UserError for anything wrong with inputs, config, folders or disk.
    """
    config = job.config
    for path in (*others, *(file.path for file in files)):
        if inside(absolute(path), config.out):
            raise UserError(f"{path} lies inside of out_dir, which a run replaces; move it")
    size = sum(file.size for file in files)
    identity = run_identity(config, files, job.info)

    def existing() -> Manifest | None:
        return output.existing(config.out, identity, config.overwrite)

    finished = existing()
    if finished is not None:
        output.tidy(config.building, config.out, identity)
        return BuildResult(config.out, finished, size)
    output.check_aside(config.out)
    output.make_folders([config.work, config.building])
    with ExitStack() as stack:
        held = [stack.enter_context(exclusive(at)) for at in (config.work, config.building)]
        output.recover(config.out)
        finished = existing()  # by a run that has ended since
        output.own(config.building, identity)
        if finished is not None:
            output.tidy(config.building, config.out, identity)
            return BuildResult(config.out, finished, size)
        diary = stack.enter_context(Diary(config))
        with config.engine.start() as engine:
            seconds = _run_steps(job, diary.watch(engine.map, held))
        start = time.monotonic()
        manifest = make_manifest(job)
        job.write_audit()
        for step in finish:
            step(manifest, config.building)
        existing()  # what has come there since is not ours to remove
        output.publish(config.building, config.out, manifest, _outputs(job), held)
        seconds["publish"] = time.monotonic() - start
        diary.finished(seconds)
    return BuildResult(config.out, manifest, size, seconds)


def _run_steps(job: Job, do: Callable[[str, list[Task]], list[Result]]) -> dict[str, float]:
    """Runs all passes by `do`; returns the seconds of each."""
    seconds = {}
    steps = job.steps()
    label, tasks = next(steps)
    while True:
        start = time.monotonic()
        results = do(label, tasks)
        seconds[label] = time.monotonic() - start
        try:
            label, tasks = steps.send(results)
        except StopIteration:
            return seconds


def make_manifest(job: Job) -> Manifest:
    """What the output folder holds. Raises UserError when the ledger does not balance."""
    ledger = job.ledger()
    wrong = ledger.imbalances()
    if wrong:
        raise UserError(
            f"the ledger does not balance: {'; '.join(wrong)}; this is a defect of mindprep, "
            "nothing was published"
        )
    splits: dict[str, list[Shard]] = {}
    for result in job.written:
        splits.setdefault(result["split"], []).append(Shard(**result["shard"]))
    largest = max((s for shards in splits.values() for s in shards), key=lambda s: s.bytes)
    if largest.bytes > ADVISED_BYTES:
        job.notes.append(
            f"{largest.path} has {largest.bytes / 1e9:.0f} GB; MindSpore advises at most "
            f"{ADVISED_BYTES / 1e9:.0f} GB a file: use more write.shards"
        )
    config = job.config
    return Manifest(
        seq_length=config.pack.seq_length,
        preset=preset_name(config.write.columns),
        columns=config.columns,
        isolate_documents=config.pack.isolate_documents,
        tokenizer=job.info,
        splits=splits,
        ledger=ledger.to_json(),
        inputs=job.inputs(),
        config=config.content(),
        versions=_versions(),
        notes=job.notes,
    )


def _outputs(job: Job) -> dict[str, dict[str, Any]]:
    """Names of the files of pass C in the output folder, and what each is known by."""
    start = len(f"{job.config.building}/")
    found = (result["outputs"].items() for result in job.written)
    return {path[start:]: told for items in found for path, told in items}


def _versions() -> dict[str, str]:
    return {
        "mindprep": __version__,
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }
