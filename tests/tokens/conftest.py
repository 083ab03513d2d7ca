"""Tiny tokenizers, trained in the test: nothing is downloaded."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.conftest import REAL_DATA

SAMPLES = [
    "",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return {'a': x ** 2}\t# twice\n\n\n",
    "  leading, trailing and   runs of spaces  ",
    "你好，世界！今天天气怎么样？《红楼梦》",
    "東京は日本の首都です。カタカナとｶﾅ",
    "한국어 텍스트입니다. Привет, мир! Ελληνικά",
    "שלום עולם مرحبا بالعالم हिन्दी भाषा ภาษาไทย",
    "👩‍👩‍👧 \U00020bb7 e\u0301 \ufffd \x00 \u2028 \u200b",
    "a" * 300,
    "</s> <s> <unk> <|endoftext|>",
]


def words(n: int) -> list[str]:
    rnd = random.Random(5)
    return ["".join(rnd.choices("etaoinshr", k=rnd.randint(2, 6))) for _ in range(n)]


def corpus() -> list[str]:
    rnd, some = random.Random(6), words(200)
    english = [" ".join(rnd.choices(some, k=12)) for _ in range(300)]
    return english + [s for s in SAMPLES if s.strip()] * 3


def train_sentencepiece(**options: Any) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_writer=out,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return out.getvalue()


def train_bpe() -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(corpus(), trainer)
    return tok


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> file: a lossless SentencePiece model, a lossy one, and a byte-level BPE."""
    folder = tmp_path_factory.mktemp("tokenizers")
    lossless = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    (folder / "sp.model").write_bytes(train_sentencepiece(**lossless))
    (folder / "lossy.model").write_bytes(train_sentencepiece())
    train_bpe().save(str(folder / "bpe.json"))
    return {
        "sentencepiece": folder / "sp.model",
        "lossy": folder / "lossy.model",
        "tokenizers": folder / "bpe.json",
    }


@pytest.fixture(scope="session")
def samples() -> list[str]:
    """Multilingual text; with the folder of real text, much more of it."""
    real = (REAL_DATA / "multi").glob("tesseract_*.txt")
    return SAMPLES + [path.read_text()[:3000] for path in sorted(real)]


@pytest.fixture(scope="session")
def real(real_data: Path) -> Path:
    """The folder of real tokenizers."""
    return real_data / "tokenizers"


@pytest.fixture(scope="session")
def char_level(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, int]], Path]:
    """char_level({character: id}) -> a tokenizer.json; characters without an id are dropped."""

    def make(vocab: dict[str, int]) -> Path:
        tok = Tokenizer(models.BPE(vocab, merges=[]))
        tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        path = tmp_path_factory.mktemp("chars") / "tokenizer.json"
        tok.save(str(path))
        return path

    return make
