"""What many tests need: small corpora made on the spot, a tokenizer, the optional real data."""

import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

pytest_plugins = ["tests.object_store"]
os.environ.setdefault("GLOG_v", "3")  # MindSpore's log: errors only

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
WORDS = (  # noqa: SIM905 (as text it can be read)
    "the of and to a in is that it was for on are with as be this have from or one had by word "
    "but not what all were we when your can said there use an each which she do how their if will "
    "up other about out many then them these so some her would make like him into time has look "
    "corpus shard token river mountain engine winter garden music letter window bridge science"
).split()
HAN = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real text, where it is present."""
    if not REAL_DATA.is_dir():
        pytest.skip("the folder of real text is not on this machine")
    return REAL_DATA


def sentence(rng: random.Random, words: int = 12) -> str:
    """English-like words, sometimes a Chinese clause."""
    text = " ".join(rng.choices(WORDS, k=words)).capitalize() + "."
    return text + "".join(rng.choices(HAN, k=9)) + "。" if rng.random() < 0.2 else text


def document(seed: int, sentences: int = 6) -> str:
    """A text that depends on the seed alone."""
    rng = random.Random(seed)
    return "\n".join(sentence(rng) for _ in range(sentences))


def write_jsonl(path: Path, texts: list[str], **more: Any) -> Path:
    """One record a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": t, **more}, ensure_ascii=False) + "\n" for t in texts)
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a SentencePiece BPE model of 600 ids, trained on the tests' own text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([document(i, 3) for i in range(300)]),
        model_writer=model,
        vocab_size=600,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        pad_id=3,
        num_threads=1,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tok.model"
    path.write_bytes(model.getvalue())
    return str(path)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with JSONL, plain text and duplicates of all kinds: 3 files, 150 documents.

    a.jsonl: 80 documents, of which 10 are exact copies, 5 near-copies, 1 empty, 1 bad record
    b.jsonl: 50 documents, of which 10 are copies of a.jsonl's
    c.txt:   20 lines, each a document
    """
    texts = [document(i, 2 + i % 9) for i in range(63)]
    near = [text + " And one more word." for text in texts[40:45]]
    folder = tmp_path / "text"
    a = write_jsonl(folder / "a.jsonl", texts + texts[:10] + near + [""])
    with a.open("a") as f:
        f.write('{"text": "cut\n')
    write_jsonl(folder / "b.jsonl", [document(100 + i, 4) for i in range(40)] + texts[20:30])
    lines = [document(200 + i, 3).replace("\n", " ") for i in range(20)]
    (folder / "c.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def config_for(corpus: Path, tokenizer: str, tmp_path: Path) -> Callable[..., Any]:
    """Makes a BuildConfig over the corpus; keywords override its fields."""
    from dataprep.corpus import BuildConfig, Eval, Write
    from dataprep.engine import Engine
    from dataprep.pack import Pack
    from dataprep.readers import Input
    from dataprep.tokens import Tokenize

    def make(out: str = "out", **fields: Any) -> BuildConfig:
        inputs = [
            Input(str(corpus / "*.jsonl"), source="web"),
            Input(str(corpus / "c.txt"), source="lines"),
        ]
        base: dict[str, Any] = {
            "inputs": inputs,
            "tokenizer": Tokenize(tokenizer),
            "out_dir": str(tmp_path / out),
            "eval": Eval(fraction=0.05),
            "pack": Pack(seq_length=64, max_documents=16),
            "write": Write(shards=3),
            "engine": Engine(quiet=True),
        }
        return BuildConfig(**{**base, **fields})

    return make
