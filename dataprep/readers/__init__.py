"""Readers: a split of an input file becomes batches of documents."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from dataprep.batch import make_batch
from dataprep.errors import UserError
from dataprep.ledger import TaskLedger
from dataprep.readers.blocks import record_blocks
from dataprep.readers.inputs import Input, InputFile, check_unchanged, expand
from dataprep.readers.jsonl import parse_block
from dataprep.readers.parquet import read_row_groups
from dataprep.readers.records import Parsed
from dataprep.readers.splits import MIB, Split, group_splits, plan_splits
from dataprep.readers.text import parse_file, parse_lines

__all__ = [
    "Input",
    "InputFile",
    "Read",
    "Split",
    "check_unchanged",
    "expand",
    "group_splits",
    "plan_splits",
]

# Below this many bad records a file goes on: a fraction of few records says little.
FEW_BAD = 10
MOST_MIB = 65_536


@dataclass(frozen=True)
class Read:
    """How to read: limits, and what to do with bad records."""

    strict: bool = False
    """Stop at the first bad record or damaged file instead of counting it."""
    max_bad_fraction: float = 0.1
    """Stop when more of a split's records are bad (and at least 10, or all that a file's first
    split has)."""
    max_document_mib: int = 32
    """A longer document (MiB) is removed as too long; of JSON Lines, a longer line. Tokenizing
    takes up to 85 bytes of memory for a byte of one document."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_bad_fraction <= 1:
            raise UserError(f"read.max_bad_fraction is {self.max_bad_fraction}; it must be in 0..1")
        if not 1 <= self.max_document_mib <= MOST_MIB:
            raise UserError(
                f"read.max_document_mib is {self.max_document_mib}; it must be in 1..{MOST_MIB}"
            )

    def __call__(self, split: Split, index: int, ledger: TaskLedger) -> Iterator[pa.RecordBatch]:
        """Batches (dataprep.batch.DOCUMENTS) of one split; `index` becomes its `split` column.

        Sets ledger.records[index] to the number of records (lines for text and JSONL), so that
        later splits of the file know their line numbers.
        Raises UserError when the file cannot be read or too much of it is bad.
        """
        ledger.records[index] = 0
        good = bad = 0
        first_bad = ""
        for part in self._parse(split, index, ledger):
            ledger.records[index] += part.records
            if part.bad and self.strict:
                raise UserError(
                    f"{split.file.path}{_at(split)}, {part.first_bad} (read.strict is on)"
                )
            good, bad = good + part.batch.num_rows, bad + part.bad
            first_bad = first_bad or part.first_bad
            if part.batch.num_rows:
                yield part.batch
        # A later split may hold a single record, and a whole file is one.
        few = bad < FEW_BAD and (good or split.start or _is_one_document(split))
        if bad > self.max_bad_fraction * (good + bad) and not few:
            raise UserError(
                f"{split.file.path}{_at(split)}: {bad:,} of {good + bad:,} records are bad, more "
                f"than read.max_bad_fraction = {self.max_bad_fraction}; the first, {first_bad}; "
                "check format and text_key, or raise the limit"
            )

    def _parse(self, split: Split, index: int, ledger: TaskLedger) -> Iterator[Parsed]:
        max_bytes = self.max_document_mib * MIB
        if split.file.format == "parquet":
            yield from read_row_groups(split, index, max_bytes, ledger)
        elif _is_one_document(split):
            blocks = record_blocks(split, max_bytes, lambda why: self._damaged(split, why, ledger))
            yield parse_file(blocks, index, max_bytes, ledger)
        else:
            yield from self._lines(split, index, max_bytes, ledger)

    def _lines(
        self, split: Split, index: int, max_bytes: int, ledger: TaskLedger
    ) -> Iterator[Parsed]:
        file, row = split.file, 0
        for block in record_blocks(split, max_bytes, lambda why: self._damaged(split, why, ledger)):
            if file.format == "jsonl":
                part = parse_block(block.data, index, row, file.text_key, ledger)
            else:
                part = parse_lines(block.data, index, row, ledger)
            yield part
            row += part.records
            if block.overlong:
                ledger.count("documents.read")
                ledger.remove(index, row, "read", "too_long", block.overlong, max_bytes)
                why = f"line {row + 1}: {block.overlong:,} bytes, over max_document_mib"
                yield Parsed(make_batch(index, [], pa.array([], pa.large_string())), 1, 1, why)
                row += 1

    def _damaged(self, split: Split, why: str, ledger: TaskLedger) -> None:
        if self.strict:
            raise UserError(f"{split.file.path} is damaged: {why} (read.strict is on)")
        ledger.count("notes.read.damaged_files")
        ledger.warnings.append(
            f"{split.file.path} is damaged: {why}; the records before that point were kept"
        )


def _is_one_document(split: Split) -> bool:
    return split.file.format == "text" and split.file.document == "file"


def _at(split: Split) -> str:
    if not split.start:
        return ""
    where = "row group" if split.file.format == "parquet" else "byte"
    return f" (from {where} {split.start:,})"
