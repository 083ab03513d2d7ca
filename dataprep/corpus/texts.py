"""Cleaned text without exact duplicates, as a plain iterator: what a tokenizer is trained on."""

import hashlib
from collections.abc import Iterator, Sequence

from dataprep.clean import Clean
from dataprep.ledger import TaskLedger
from dataprep.readers import Input, Read, expand, plan_splits


def cleaned_texts(
    inputs: Sequence[Input], read: Read, clean: Clean, warnings: list[str]
) -> Iterator[str]:
    """Documents in input order, each text once; `warnings` gets what a person should see.

    Memory: 16 bytes of hash for each document.
    """
    seen: set[bytes] = set()
    for index, split in enumerate(plan_splits(expand(inputs))):
        ledger = TaskLedger(split.file.source)
        for batch in clean(read(split, index, ledger), ledger, split.file.language):
            for text in batch.column("text").to_pylist():
                key = hashlib.blake2b(text.encode(), digest_size=16).digest()
                if key not in seen:
                    seen.add(key)
                    yield text
        warnings.extend(ledger.warnings)
