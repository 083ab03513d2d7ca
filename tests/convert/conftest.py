"""Small imports: ids of 100, rows of 8."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep.convert import ImportConfig, Tokenized, Vocabulary
from dataprep.corpus import Write
from dataprep.engine import Engine
from dataprep.pack import Pack

MakeImport = Callable[..., ImportConfig]


@pytest.fixture
def import_of(tmp_path: Path) -> MakeImport:
    """Makes an ImportConfig of data sets at these paths; keywords override its fields."""

    def make(*paths: object, out: str = "out", **fields: Any) -> ImportConfig:
        base: dict[str, Any] = {
            "inputs": [Tokenized(str(path)) for path in paths],
            "tokenizer": Vocabulary(vocab_size=100, eos_id=0),
            "out_dir": str(tmp_path / out),
            "pack": Pack(seq_length=8, max_documents=8),
            "write": Write(shards=2),
            "engine": Engine(quiet=True),
        }
        return ImportConfig(**{**base, **fields})

    return make
