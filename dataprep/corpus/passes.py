"""The passes of one run, and what each leaves for the next."""

import platform
import time
import unicodedata
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.corpus import audit, cap, decide, pass_a, pass_b, pass_c
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.output import REMOVED
from dataprep.corpus.plan import Plan
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest, Shard
from dataprep.tokens import LoadedTokenizer
from dataprep.version import __version__

Result = dict[str, Any]
Step = tuple[str, list[Task]]
READ, DEDUP, TOKENIZE = "A read, clean, sign", "dedup", "B tokenize"
CAP, WRITE = "max_tokens", "C pack, write"


def run_identity(config: BuildConfig, plan: Plan, loaded: LoadedTokenizer) -> dict[str, Any]:
    """What makes a run this run: config, inputs as they are now, tokenizer, version."""
    return {
        "config": config.content(),
        "inputs": [[f.path, f.size, f.version] for f in plan.files],
        "tokenizer": asdict(loaded.info),
        "version": __version__,
    }


class Passes:
    """The passes of one run, and what each leaves for the next."""

    def __init__(self, config: BuildConfig, plan: Plan, loaded: LoadedTokenizer) -> None:
        self.config, self.plan, self.loaded = config, plan, loaded
        self.notes: list[str] = []
        self.spilled: list[Result] = []
        self.capped: Result | None = None
        self.written: list[Result] = []
        if loaded.lossy:
            self.notes.append(f"the tokenizer loses text: {loaded.lossy}")

    def steps(self) -> Generator[Step, list[Result], None]:
        """Yields each pass as (label, tasks) and wants its results sent back."""
        config, plan = self.config, self.plan
        self.read = pass_a.tasks(config, plan)
        self.read_results = yield READ, self.read
        records = [0] * len(plan.splits)
        for result in self.read_results:
            self.notes.extend(result["warnings"])
            for index, n in result["records"].items():
                records[int(index)] = n
        self.records = records
        self.decide = decide.task(config, plan, self.read, records)
        (self.decided,) = yield DEDUP, [self.decide]
        self.notes.extend(self.decided["warnings"])
        self._check_survivors()
        info = self.loaded.info
        self.tokenize = pass_b.tasks(config, info, self.read, self.decide, self.decided)
        self.spilled = yield TOKENIZE, self.tokenize
        if not any(result["ranges"] for result in self.spilled):
            raise UserError(self._nothing_left())
        if cap.wanted(config):
            task = cap.task(config, plan, self.tokenize, self.decided)
            (self.capped,) = yield CAP, [task]
        self.write = pass_c.tasks(
            config, plan, self.decided, self.tokenize, self.capped, info.pad_id
        )
        self.written = yield WRITE, self.write

    @property
    def labels(self) -> tuple[str, ...]:
        """Of all passes of this run, in order."""
        return (READ, DEDUP, TOKENIZE, *((CAP,) if cap.wanted(self.config) else ()), WRITE)

    def run(self, do: Callable[[str, list[Task]], list[Result]]) -> dict[str, float]:
        """Runs all passes by `do`; returns the seconds of each."""
        seconds = {}
        steps = self.steps()
        label, tasks = next(steps)
        while True:
            start = time.monotonic()
            results = do(label, tasks)
            seconds[label] = time.monotonic() - start
            try:
                label, tasks = steps.send(results)
            except StopIteration:
                return seconds

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
        capped = [self.capped] if self.capped else []
        results = [*self.read_results, self.decided, *self.spilled, *capped, *self.written]
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
        audit.write_removed(
            self.config.building / REMOVED,
            self.config,
            self.plan,
            self.decide,
            self.decided["starts"],
            self.read,
            self.tokenize,
            self.capped,
        )

    def outputs(self) -> dict[str, dict[str, Any]]:
        """Names of the files of pass C in the output folder, and what each is known by."""
        start = len(f"{self.config.building}/")
        found = (result["outputs"].items() for result in self.written)
        return {path[start:]: told for items in found for path, told in items}


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
