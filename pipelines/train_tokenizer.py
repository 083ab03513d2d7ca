"""Trains a SentencePiece model on cleaned, deduplicated text.

python -m pipelines.train_tokenizer --config C.yaml
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dataprep.clean import Clean
from dataprep.corpus.texts import cleaned_texts
from dataprep.errors import UserError, printable
from dataprep.files import check_path
from dataprep.readers import Input, Read, expand
from dataprep.tokens.tokenizer import load
from dataprep.tokens.train import TrainTokenizer
from pipelines.common import human, parse_config, run

DESCRIPTION = "Trains a SentencePiece model on cleaned, deduplicated text."


@dataclass(frozen=True)
class TokenizerConfig:
    """A SentencePiece model from raw text."""

    inputs: list[Input]
    """What to read."""
    out: str
    """Path of the .model file."""
    train: TrainTokenizer = field(default_factory=TrainTokenizer)
    """Size and kind of the model."""
    read: Read = field(default_factory=Read)
    """How to read."""
    clean: Clean = field(default_factory=Clean)
    """How to clean."""

    def __post_init__(self) -> None:
        check_path("out", self.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains a tokenizer and prints its summary."""
    config = parse_config(TokenizerConfig, argv, "mindprep tokenizer", DESCRIPTION)
    start = time.monotonic()
    out = Path(config.out).resolve()
    if any(Path(file.path).resolve() == out for file in expand(config.inputs)):
        raise UserError(f"out: {config.out} is one of the inputs; name another file")
    warnings: list[str] = []
    counted = _Counted(cleaned_texts(config.inputs, config.read, config.clean, warnings))
    config.train(iter(counted), Path(config.out))
    loaded = load(config.out)
    print(
        f"tokenizer  {loaded.info.vocab_size:,} ids from {counted.documents:,} documents, "
        f"{human(counted.characters)} characters, in {time.monotonic() - start:.1f} s"
    )
    for warning in warnings:
        print(f"note       {printable(warning)}")
    if loaded.lossy:
        print(f"note       it loses text: {loaded.lossy}")
    print(f"output     {config.out}")
    return 0


class _Counted:
    """Passes texts through and counts them."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self.documents = self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.documents += 1
            self.characters += len(text)
            yield text


if __name__ == "__main__":
    sys.exit(run(main))
