"""The import: tokenized documents to an output folder, by the build's own last pass.

look     lengths of all documents
place    -> shard and place of each
spill    documents -> spill, by output shard
write    shard <- its slice of every spill        pass C of the build
"""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from dataprep.convert.config import ImportConfig
from dataprep.convert.inputs import DataSet, find_data_sets
from dataprep.convert.steps import look_tasks, place_task, spill_tasks
from dataprep.corpus import audit, pass_b, pass_c
from dataprep.corpus.arrow import read_columns
from dataprep.corpus.output import REMOVED
from dataprep.corpus.plan import Identity
from dataprep.corpus.run import BuildResult, Finish, Result, Step, produce
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.ledger import REMOVED as REMOVED_COLUMNS
from dataprep.ledger import Ledger

LOOK, PLACE, SPILL, WRITE = "look", "place", "read", "pack, write"
MIB = 1 << 20


def import_tokens(config: ImportConfig, finish: Sequence[Finish] = ()) -> BuildResult:
    """Makes an output folder of tokenized documents; resumes what an interrupted run has done.

    `finish`: functions that add files (a report) to the folder before it is published.
    Raises UserError for anything wrong with inputs, config, folders or disk.
    """
    data_sets = find_data_sets(config.inputs)
    files = [file for data in data_sets for part in data.parts for file in part.files]
    others = [config.tokenizer.path] if config.tokenizer.path else []
    return produce(Import(config, data_sets), files, others, finish)


class Import:
    """The passes of one import, and what each leaves for the next."""

    def __init__(self, config: ImportConfig, data_sets: list[DataSet]) -> None:
        self.config, self.data_sets = config, data_sets
        self.info = config.tokenizer.info()
        self.notes: list[str] = []
        self.spilled: list[Result] = []
        self.written: list[Result] = []

    def steps(self) -> Generator[Step, list[Result], None]:
        """Yields each pass as (label, tasks) and wants its results sent back."""
        config, work = self.config, self.config.work
        seed = config.seed if config.shuffle else None
        split = config.engine.split_mib * MIB
        looks = look_tasks(self.data_sets, work)
        found = yield LOOK, looks
        self.documents = [result["documents"] for result in found]
        self.notes.extend(note for result in found for note in result["notes"])
        place = place_task(looks, self.data_sets, work, config.write.shards, seed, split)
        (placed,) = yield PLACE, [place]
        self._check(placed)
        self.spill = spill_tasks(
            looks, self.documents, self.data_sets, work, placed, seed, self.info.vocab_size
        )
        self.spilled = yield SPILL, self.spill
        shards = {"train": placed["shards"]}
        names = [data.path for data in self.data_sets]
        write = pass_c.tasks(config, names, shards, self.spill, None, self.info.pad_id)
        self.written = yield WRITE, write

    def _check(self, placed: Result) -> None:
        if not placed["kept"]:
            raise UserError(
                f"none of {sum(self.documents):,} documents has a token; nothing is left to write"
            )
        if placed["shards"] < self.config.write.shards:
            self.notes.append(
                f"wrote {placed['shards']} train shards, not {self.config.write.shards}: there are "
                "no more documents"
            )

    def ledger(self) -> Ledger:
        """The sum over all passes that have run."""
        results = [*self.spilled, *self.written]
        return Ledger().add(Ledger.from_json(result["ledger"]) for result in results)

    def inputs(self) -> list[dict[str, Any]]:
        """For the manifest: one for each data set."""
        owners = [i for i, data in enumerate(self.data_sets) for _ in data.parts]
        rows = np.bincount(owners, self.documents, len(self.data_sets)).astype(int).tolist()
        return [
            {"path": d.path, "source": d.source, "format": d.format, "bytes": d.bytes, "rows": n}
            for d, n in zip(self.data_sets, rows)
        ]

    def write_audit(self) -> None:
        """Writes audit/removed: documents without ids."""
        names = [data.path for data in self.data_sets]
        identity = Identity(np.arange(len(names)), np.zeros(len(names), np.int64))

        def removed(task: Task) -> Any:
            table = read_columns(task.folder / pass_b.REMOVED_FILE, REMOVED_COLUMNS.names)
            return audit.by_rule(table, identity, getattr(task.work, "source", ""), names)

        audit.write_tables(self.config.building / REMOVED, (removed(task) for task in self.spill))
