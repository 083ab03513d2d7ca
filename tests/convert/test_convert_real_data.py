"""A pair of files that Megatron's own tools have made goes in, and comes out again byte by byte."""

from pathlib import Path
from typing import Any

import pytest

from dataprep.convert import (
    ExportConfig,
    ImportConfig,
    Tokenized,
    Vocabulary,
    export_megatron,
    import_tokens,
)
from dataprep.corpus import Write
from dataprep.engine import Engine
from dataprep.mindformers import write_mindformers
from dataprep.pack import Pack
from dataprep.report import write_report
from dataprep.verify import verify

NAME = "meg-gpt2-openwebtext_text_document"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("columns", ["mindformers", "compact", "legacy"])
def test_megatron_openwebtext(real_data: Path, tmp_path: Path, columns: Any, workers: int) -> None:
    prefix = real_data / "tokenizers" / "megatron_owt" / NAME
    config = ImportConfig(
        inputs=[Tokenized(str(prefix))],
        tokenizer=Vocabulary(vocab_size=50_257, eos_id=50_256),
        out_dir=str(tmp_path / "out"),
        pack=Pack(seq_length=1024),
        write=Write(shards=4, columns=columns),
        engine=Engine(workers=workers, split_mib=1, quiet=True),
    )
    manifest = import_tokens(config, [write_mindformers(config.out), write_report]).manifest
    assert manifest.inputs[0]["rows"] == 1000
    assert isinstance(config.out, Path)
    assert verify(config.out).defects == []
    settings = ExportConfig(config.out_dir, str(tmp_path / "x"), workers=workers, quiet=True)
    result = export_megatron(settings)
    assert (result.documents, result.dtype) == (1000, "uint16")
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"x{ending}").read_bytes() == Path(f"{prefix}{ending}").read_bytes()
