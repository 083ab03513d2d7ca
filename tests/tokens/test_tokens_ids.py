"""Ids are those of the reference libraries, asked directly."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dataprep.tokens import load


def reference(path: Path, texts: Iterable[str]) -> list[list[int]]:
    if path.suffix == ".json":
        tok = Tokenizer.from_file(str(path))
        tok.encode_special_tokens = True  # special tokens spelled out in a text are text
        return [tok.encode(text, add_special_tokens=False).ids for text in texts]
    sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [sp.encode(text) for text in texts]


KINDS = ["sentencepiece", "lossy", "tokenizers"]


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_tokenizers(kind: str, tiny: dict[str, Path], samples: list[str]) -> None:
    encoder = load(str(tiny[kind])).encoder
    ids = encoder.encode(samples)
    assert ids == reference(tiny[kind], samples)
    assert [encoder.encode([text])[0] for text in samples] == ids
    assert sum(map(len, ids)) > 300


@settings(deadline=None, max_examples=80)
@given(kind=st.sampled_from(KINDS), texts=st.lists(st.text(st.characters(codec="utf-8"))))
def test_any_text(kind: str, texts: list[str], tiny: dict[str, Path]) -> None:
    encoder = load(str(tiny[kind])).encoder
    assert encoder.encode(texts) == reference(tiny[kind], texts)


@pytest.mark.parametrize("kind", ["sentencepiece", "tokenizers"])
def test_a_lossless_tokenizer_gives_the_text_back(
    kind: str, tiny: dict[str, Path], samples: list[str]
) -> None:
    loaded = load(str(tiny[kind]))
    assert loaded.lossy == ""
    for text in samples:
        if not text.startswith(" "):
            assert loaded.encoder.decode(loaded.encoder.encode([text])[0]) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_cannot_end_itself(kind: str, tiny: dict[str, Path]) -> None:
    """Corpus text is hostile: a special token spelled out in it is text."""
    loaded = load(str(tiny[kind]))
    ids = loaded.encoder.encode(["one <|endoftext|> two </s> three <s><pad>"])[0]
    assert not {loaded.info.eos_id, loaded.info.bos_id, loaded.info.pad_id} & set(ids)


def test_real_sentencepiece_models(real: Path, samples: list[str]) -> None:
    paths = sorted((real / "spm").glob("*.model"))
    assert len(paths) > 8
    for path in paths:
        assert load(str(path)).encoder.encode(samples) == reference(path, samples), path


def test_real_tokenizer_files(real: Path, samples: list[str]) -> None:
    for path in sorted(real.rglob("*okenizer.json")):
        assert load(str(path)).encoder.encode(samples) == reference(path, samples), path


def test_ids_that_another_implementation_expects(real: Path) -> None:
    """llama.cpp's vectors for GPT-2."""
    inputs = (real / "expected_ids" / "gpt-2.inp").read_bytes().decode()
    texts = inputs.split("\n__ggml_vocab_test__\n")
    lines = (real / "expected_ids" / "gpt-2.out").read_text().split("\n")
    expected = [[int(i) for i in line.split()] for line in lines]
    encoder = load(str(real / "gpt2" / "tokenizer.json")).encoder
    got = encoder.encode(texts)
    assert len(got) > 40
    assert got == expected[: len(got)]
