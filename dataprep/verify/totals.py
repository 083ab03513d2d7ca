"""The ledger of the manifest against what the shards and audit/removed hold."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataprep.errors import UserError
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest
from dataprep.trace import read_audit
from dataprep.verify.pieces import Pieces


@dataclass
class Totals:
    """What the shards hold in all. Memory: a byte for each record of the inputs."""

    manifest: Manifest

    def __post_init__(self) -> None:
        self.firsts: dict[str, tuple[int, int]] = {}
        """Input file -> number of its first record, and of the one after its last."""
        stop = 0
        for told in self.manifest.inputs:
            first, stop = stop, stop + int(told["rows"])
            self.firsts[told["path"]] = first, stop
        self._seen = np.zeros(stop, bool)
        self._counts: Counter[str] = Counter()

    def add(self, pieces: Pieces, rows: int) -> None:
        """Adds a shard."""
        self._seen[pieces.document] = True
        self._counts["tokens.placed"] += pieces.tokens
        self._counts["slots.total"] += rows * self.manifest.seq_length
        self._counts["targets.trained"] += pieces.targets

    def defects(self, whole: bool) -> list[str]:
        """What contradicts the ledger; `whole`: all shards were added."""
        ledger = Ledger.from_json(self.manifest.ledger)
        found = [f"ledger: {line}" for line in ledger.imbalances()]
        if whole:
            counts = {**self._counts, "documents.kept": int(np.count_nonzero(self._seen))}
            for name, held in counts.items():
                told = ledger.total(name)
                if told != held:
                    found.append(f"ledger: {name} is {told:,}, the shards hold {held:,}")
        return found


def removed_defects(out_dir: Path, manifest: Manifest) -> list[str]:
    """Where audit/removed does not explain as many documents as the ledger says were removed."""
    explained: Counter[str] = Counter()
    for path in sorted((out_dir / "audit" / "removed").glob("*.parquet")):
        try:
            groups = read_audit(path, columns=("stage", "rule")).group_by(["stage", "rule"])
            for told in groups.aggregate([([], "count_all")]).to_pylist():
                explained[f"{told['stage']}.{told['rule']}"] += told["count_all"]
        except UserError as e:
            return [str(e)]
    removed = Ledger.from_json(manifest.ledger).below("documents.removed.")
    return [
        f"audit/removed explains {explained[rule]:,} documents of {removed.get(rule, 0):,} removed "
        f"by {rule}"
        for rule in sorted({*removed, *explained})
        if removed.get(rule, 0) != explained[rule]
    ]
