"""The passes of one run, and what each leaves for the next."""

from collections.abc import Generator
from typing import Any

import numpy as np

from dataprep.corpus import audit, cap, decide, pass_a, pass_b, pass_c
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.output import REMOVED
from dataprep.corpus.plan import Plan
from dataprep.corpus.run import Result, Step
from dataprep.errors import UserError
from dataprep.ledger import Ledger
from dataprep.tokens import LoadedTokenizer

READ, DEDUP, TOKENIZE = "A read, clean, sign", "dedup", "B tokenize"
CAP, WRITE = "max_tokens", "C pack, write"


class Passes:
    """The passes of one run, and what each leaves for the next."""

    def __init__(self, config: BuildConfig, plan: Plan, loaded: LoadedTokenizer) -> None:
        self.config, self.plan, self.loaded = config, plan, loaded
        self.info = loaded.info
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
        info = self.info
        self.tokenize = pass_b.tasks(config, info, self.read, self.decide, self.decided)
        self.spilled = yield TOKENIZE, self.tokenize
        if not any(result["ranges"] for result in self.spilled):
            raise UserError(self._nothing_left())
        if cap.wanted(config):
            task = cap.task(config, plan, self.tokenize, self.decided)
            (self.capped,) = yield CAP, [task]
        files = [file.path for file in plan.files]
        shards = {"train": self.decided["shards"], "eval": self.decided["eval_shards"]}
        self.write = pass_c.tasks(config, files, shards, self.tokenize, self.capped, info.pad_id)
        self.written = yield WRITE, self.write

    @property
    def labels(self) -> tuple[str, ...]:
        """Of all passes of this run, in order."""
        return (READ, DEDUP, TOKENIZE, *((CAP,) if cap.wanted(self.config) else ()), WRITE)

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

    def inputs(self) -> list[dict[str, Any]]:
        """For the manifest."""
        files = self.plan.file_of_split()
        rows = np.bincount(files, self.records, minlength=len(self.plan.files)).astype(int)
        return [
            {"path": f.path, "source": f.source, "format": f.format, "bytes": f.size, "rows": n}
            for f, n in zip(self.plan.files, rows.tolist())
        ]

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
