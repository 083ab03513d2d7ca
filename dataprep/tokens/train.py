"""Trains a SentencePiece model on cleaned, deduplicated text."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sentencepiece

from dataprep.errors import UserError
from dataprep.files import atomic_path

MAX_SENTENCE = 16 << 10  # bytes: the trainer's unit; longer lines are cut


@dataclass(frozen=True)
class TrainTokenizer:
    """Size and kind of a SentencePiece model that loses no character."""

    vocab_size: int = 32_000
    """Number of ids."""
    model_type: Literal["bpe", "unigram"] = "bpe"
    """Algorithm."""
    character_coverage: float = 0.9995
    """Share of characters with an id of their own; the rest become bytes."""
    max_mib: int = 100
    """Train on at most this much text (MiB): the first of it, so the model is reproducible."""

    def __post_init__(self) -> None:
        if not 300 <= self.vocab_size < 2**31:
            raise UserError(f"vocab_size is {self.vocab_size}; it must be 300 or more")
        if not 0.9 <= self.character_coverage <= 1:
            raise UserError(
                f"character_coverage is {self.character_coverage}; it must be in 0.9..1"
            )
        if self.max_mib < 1:
            raise UserError(f"max_mib is {self.max_mib}; it must be 1 or more")

    def __call__(self, texts: Iterator[str], path: Path) -> None:
        """Trains on `texts` and writes the model to `path`.

        Byte fallback and identity normalization: "if x:\\n    y" survives a round trip. Ids 0 to 3
        are <unk>, <s>, </s>, <pad>.
        Raises UserError when there is too little text for the vocabulary.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_sentences(texts, self.max_mib << 20),
                model_writer=model,
                vocab_size=self.vocab_size,
                model_type=self.model_type,
                character_coverage=self.character_coverage,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                allow_whitespace_only_pieces=True,
                split_digits=True,
                pad_id=3,
                num_threads=1,  # several make the result depend on their timing
                max_sentence_length=MAX_SENTENCE,
                minloglevel=2,
            )
        except RuntimeError as e:
            raise UserError(
                f"cannot train a tokenizer of {self.vocab_size} ids: {e}; give more text or a "
                "smaller vocab_size"
            ) from e
        with atomic_path(path) as tmp:
            tmp.write_bytes(model.getvalue())


def _sentences(texts: Iterator[str], max_bytes: int) -> Iterator[str]:
    """Lines, in pieces the trainer accepts, up to max_bytes.

    The trainer strips their newlines: in the model a newline is its byte.
    """
    left = max_bytes
    for text in texts:
        for line in text.splitlines(keepends=True):
            # A character is at most 4 bytes; NUL ends a sentence in the trainer's C++ strings.
            for start in range(0, len(line), MAX_SENTENCE // 4):
                piece = line[start : start + MAX_SENTENCE // 4].replace("\0", " ")
                yield piece
                left -= len(piece.encode())
        if left < 0:
            return
