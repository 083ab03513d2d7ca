"""Real text of five kinds; skipped where the folder of real text is absent."""

from pathlib import Path

import pytest

from dataprep.clean import Clean
from dataprep.corpus import BuildConfig, BuildResult, Eval, Write, build
from dataprep.dedup.config import Dedup
from dataprep.engine import Engine
from dataprep.pack import Pack
from dataprep.readers import Input
from dataprep.tokens import Tokenize
from dataprep.verify import verify


def build_real(
    data: Path, out: Path, inputs: list[tuple[str, str]], clean: Clean, dedup: Dedup
) -> BuildResult:
    return build(
        BuildConfig(
            inputs=[Input(str(data / path), source) for path, source in inputs],
            tokenizer=Tokenize(str(data / "tokenizers/spm/mistral_v1.model")),
            out_dir=str(out),
            clean=clean,
            dedup=dedup,
            eval=Eval(fraction=0.01),
            pack=Pack(seq_length=2048),
            write=Write(shards=4),
            engine=Engine(workers=2, quiet=True),
        )
    )


def test_five_sources(real_data: Path, tmp_path: Path) -> None:
    inputs = [
        ("en/openwebtext_1k.jsonl", "web"),
        ("en/readmes.jsonl", "readmes"),
        ("zh/reviews_pos.txt", "reviews"),
        ("multi/fastapi_docs_i18n.jsonl", "docs"),
        ("neardup/spdx_licenses.jsonl", "licences"),
    ]
    clean = Clean(rules=["garbled", "punctuation_only", "gopher_quality"])
    result = build_real(real_data, tmp_path / "out", inputs, clean, Dedup())
    ledger = result.ledger
    assert ledger.imbalances() == []
    # Lines are counted as they stand in the files.
    assert ledger.total("documents.read") == 1000 + 663 + 16_548 + 345 + 819
    assert ledger.sources() == ["", "docs", "licences", "readmes", "reviews", "web"]
    assert ledger.total("documents.removed.dedup.minhash") > 100
    verdict = verify(result.out_dir)
    assert verdict.defects == []
    assert verdict.tokens == ledger.total("tokens.tokenized")


@pytest.mark.parametrize("method", ["exact", "minhash"])
def test_all_duplicate_lines_are_found(real_data: Path, tmp_path: Path, method: str) -> None:
    """16,548 lines, 8,379 of them different."""
    result = build_real(
        real_data,
        tmp_path / "out",
        [("zh/reviews_pos.txt", "reviews")],
        Clean(fix_unicode=False, whitespace=False, rules=[]),
        Dedup(method=method),  # type: ignore[arg-type]
    )
    assert result.ledger.total("documents.removed.dedup.exact") == 8_169
