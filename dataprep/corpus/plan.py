"""The plan of a run: sorted files, splits, and the tasks of the first pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataprep.corpus.config import BuildConfig
from dataprep.readers import InputFile, Split, expand, group_splits, plan_splits

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What a run reads, in input order."""

    files: list[InputFile]
    splits: list[Split]
    groups: list[list[int]]
    """Split indices of each task."""

    def file_of_split(self) -> Ints:
        """int64[splits]: index of each split's file."""
        number = {file.path: i for i, file in enumerate(self.files)}
        return np.array([number[split.file.path] for split in self.splits], np.int64)

    def row_bases(self, records: Sequence[int]) -> Ints:
        """int64[splits]: row of the file at which each split begins.

        records: number of records in each split, known once all are read.
        """
        bases = np.zeros(len(self.splits), np.int64)
        files = self.file_of_split()
        for i in range(1, len(bases)):
            if files[i] == files[i - 1]:
                bases[i] = bases[i - 1] + records[i - 1]
        return bases


def make_plan(config: BuildConfig) -> Plan:
    """Plans a run from the inputs and the config alone.

    Raises UserError when an input is missing or unreadable.
    """
    files = expand(config.inputs)
    splits = plan_splits(files, config.engine.split_mib << 20)
    return Plan(files, splits, group_splits(splits))


@dataclass(frozen=True)
class Identity:
    """Turns (split, row of the split) into (file, row of the file). Picklable, small."""

    files: Ints
    """int64[splits]"""
    bases: Ints
    """int64[splits]"""

    def __call__(
        self, split: npt.NDArray[np.int32], row: npt.NDArray[np.int64]
    ) -> tuple[Ints, Ints]:
        """(file int64[n], row int64[n])"""
        return self.files[split], self.bases[split] + row
