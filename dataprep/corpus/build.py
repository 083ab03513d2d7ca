"""The build: raw text to an output folder, pass by pass.

PASS A  map     split      -> read -> clean -> sign     cleaned split, signatures, removed
        global  signatures -> who stays                 decisions
PASS B  map     cleaned    -> tokenize                  spill, by output shard
PASS C  reduce  shard      <- its slice of every spill  MindRecord
        global  audit, report, manifest; then it appears in its place
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from dataprep.corpus import output
from dataprep.corpus.config import BuildConfig, inside
from dataprep.corpus.diary import Diary
from dataprep.corpus.lock import exclusive
from dataprep.corpus.passes import Passes, run_identity
from dataprep.corpus.plan import make_plan
from dataprep.errors import UserError
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest
from dataprep.storage import Place, absolute

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


def build(config: BuildConfig, finish: Sequence[Finish] = ()) -> BuildResult:
    """Builds a corpus; resumes what an earlier, interrupted run of the same config has done.

    `finish`: functions that add files (a report) to the folder before it is published.
    Raises UserError for anything wrong with inputs, config, folders or disk.
    """
    loaded = config.tokenizer.load()
    plan = make_plan(config)
    for path in (config.tokenizer.path, *(file.path for file in plan.files)):
        if inside(absolute(path), config.out):
            raise UserError(f"{path} lies inside of out_dir, which a build replaces; move it")
    size = sum(file.size for file in plan.files)
    identity = run_identity(config, plan, loaded)

    def existing() -> Manifest | None:
        return output.existing(config.out, identity, config.overwrite)

    finished = existing()
    if finished is not None:
        output.tidy(config.building, identity)
        return BuildResult(config.out, finished, size)
    output.check_aside(config.out)
    output.make_folders([config.work, config.building])
    with ExitStack() as stack:
        held = [stack.enter_context(exclusive(at)) for at in (config.work, config.building)]
        output.recover(config.out)
        finished = existing()  # by a run that has ended since
        output.own(config.building, identity)
        if finished is not None:
            output.tidy(config.building, identity)
            return BuildResult(config.out, finished, size)
        diary = stack.enter_context(Diary(config))
        passes = Passes(config, plan, loaded)
        with config.engine.start() as engine:
            seconds = passes.run(diary.watch(engine.map, held))
        start = time.monotonic()
        manifest = passes.manifest()
        passes.write_audit()
        for step in finish:
            step(manifest, config.building)
        existing()  # what has come there since is not ours to remove
        output.publish(config.building, config.out, manifest, passes.outputs(), held)
        seconds["publish"] = time.monotonic() - start
        diary.finished(seconds)
    return BuildResult(config.out, manifest, size, seconds)
