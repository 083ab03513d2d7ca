"""What a run would do, and how far one is: for `--dry_run` and `--status`."""

import json
from collections.abc import Iterator
from typing import Any

from dataprep.corpus import output
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.diary import PROGRESS, RUNS
from dataprep.corpus.passes import Passes
from dataprep.corpus.plan import make_plan
from dataprep.corpus.run import run_identity
from dataprep.engine.task import look
from dataprep.errors import UserError
from dataprep.files import read_json
from dataprep.manifest import NAME, Manifest
from dataprep.storage import Place, entry, read

SHOWN = 20  # tasks named for each pass


def dry_run(config: BuildConfig) -> Iterator[str]:
    """Lines about each pass: its tasks and sizes, what is done, what would be redone and why.

    Reads the inputs' sizes and the receipts; writes nothing. A pass whose tasks follow from one
    that is not done cannot be listed yet.
    """
    plan = make_plan(config)
    size = sum(file.size for file in plan.files)
    yield f"{len(plan.files):,} files, {size / 1e6:,.1f} MB, {len(plan.splits):,} splits"
    loaded = config.tokenizer.load()
    try:
        if output.existing(
            config.out, run_identity(config, plan.files, loaded.info), config.overwrite
        ):
            yield f"{config.out} is complete: nothing is left to do"
            return
    except UserError as e:
        yield f"a run would end at once: {e}"
    passes = Passes(config, plan, loaded)
    steps = passes.steps()
    label, tasks = next(steps)
    while True:
        found = look(tasks)
        todo = [(task, why) for task, (_, why) in zip(tasks, found) if why]
        yield f"{label}: {len(tasks):,} tasks, {len(tasks) - len(todo):,} done, {len(todo):,} to do"
        yield from (f"  {task.name} ({task.size:,} bytes): {why}" for task, why in todo[:SHOWN])
        if len(todo) > SHOWN:
            yield f"  ... and {len(todo) - SHOWN:,} more"
        if todo:
            after = passes.labels[passes.labels.index(label) + 1 :]
            yield from (f"{later}: follows from {label}" for later in after)
            return
        results = [result for result, _ in found if result is not None]
        try:
            label, tasks = steps.send(results)
        except StopIteration:
            yield "nothing is left to do but to publish"
            return


def status(out: Place, work_dir: Place | None = None) -> Iterator[str]:
    """Lines about the run that makes `out`: complete, at work, stopped or failed.

    Raises UserError when there is no trace of one.
    """
    if entry(out / NAME):
        manifest = Manifest.load(out)
        rows = sum(manifest.rows(split) for split in manifest.splits)
        yield f"{out}: complete, {rows:,} rows, data set {manifest.fingerprint[:16]}"
    work = work_dir or out.with_name(out.name + ".work")
    if not entry(work / RUNS):
        if entry(out / NAME):
            return
        raise UserError(f"no run has left a trace in {out} or {work}; name its work_dir, if any")
    last = _last_run(work / RUNS)
    yield f"last run: {last['event']} at {last['time']}{_more(last)}"
    if entry(work / PROGRESS):
        for label, done, tasks in _progress(work / PROGRESS):
            yield f"  {label}: {done:,} of {tasks:,} tasks done"


def _last_run(path: Place) -> dict[str, Any]:
    try:
        event = json.loads(read(path).decode("utf-8").splitlines()[-1])
        return {key: str(event[key]) for key in ("event", "time")} | {"why": event.get("why", "")}
    except (LookupError, ValueError, TypeError, AttributeError) as e:
        raise UserError(f"{path} is damaged; delete it") from e


def _progress(path: Place) -> list[tuple[str, int, int]]:
    try:
        return [(label, int(n["done"]), int(n["tasks"])) for label, n in read_json(path).items()]
    except (LookupError, ValueError, TypeError, AttributeError) as e:
        raise UserError(f"{path} is damaged; delete it") from e


def _more(event: dict[str, Any]) -> str:
    if event["event"] == "failed":
        return f": {event['why']}"
    if event["event"] == "started":
        return ", and did not say that it ended: at work, or killed"
    return ""
