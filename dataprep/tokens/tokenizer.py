"""Tokenizers behind one face: SentencePiece models and Hugging Face `tokenizer.json` files.

Ids are those of the reference library, untouched. What matters for training is resolved at load:
the end-of-document id exists, ids fit int32, and a model that loses text is announced.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.manifest import TokenizerInfo

# Names under which well-known tokenizers keep their end-of-document token.
EOS_CANDIDATES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>", "[SEP]")
PAD_CANDIDATES = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")
# Newline, indentation and a run of spaces: what a lossy model folds (code is unreadable then).
PROBE = "if x:\n    y  z\t1\n"


class Encoder(Protocol):
    """What both libraries are reduced to."""

    kind: str
    vocab_size: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        ...

    def piece(self, token: int) -> str:
        """Printable form of one token."""
        ...

    def id_of(self, piece: str) -> int | None:
        """Id of a piece, None when the vocabulary lacks it."""
        ...


class SentencePieceEncoder:
    """A SentencePiece .model file."""

    kind = "sentencepiece"

    def __init__(self, path: Path) -> None:
        import sentencepiece

        try:
            self._sp = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        except RuntimeError as e:
            raise UserError(
                f"tokenizer.path: {path} is neither a SentencePiece .model nor a tokenizer.json "
                f"file ({e})"
            ) from e
        self.vocab_size = int(self._sp.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._sp.encode(list(texts), out_type=int, num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        return self._sp.decode([int(i) for i in ids])

    def piece(self, token: int) -> str:
        return str(self._sp.id_to_piece(int(token))).replace("\u2581", " ")

    def id_of(self, piece: str) -> int | None:
        found = int(self._sp.piece_to_id(piece))
        return found if self._sp.id_to_piece(found) == piece else None


class HuggingFaceEncoder:
    """A tokenizer.json file of the `tokenizers` library."""

    kind = "tokenizers"

    def __init__(self, path: Path) -> None:
        # One thread a worker, and no thread pool that a later fork would inherit locked.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        self._path = path
        try:
            self._tok: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises bare Exception
            raise UserError(f"tokenizer.path: {path} is not a tokenizer.json file ({e})") from e
        self._tok.no_truncation()
        self._tok.no_padding()
        # "<|endoftext|>" inside of a document is text, as it is for SentencePiece: a document must
        # not be able to end itself.
        self._tok.encode_special_tokens = True
        self.vocab_size = 1 + max(self._tok.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            batch = self._tok.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as e:  # as above; a model may lack the id for what it does not know
            raise UserError(f"tokenizer.path: {self._path} cannot encode the text ({e})") from e
        return [e.ids for e in batch]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tok.decode([int(i) for i in ids], skip_special_tokens=False)

    def piece(self, token: int) -> str:
        return self.decode([token])

    def id_of(self, piece: str) -> int | None:
        return self._tok.token_to_id(piece)


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer ready to use, with its special ids resolved."""

    encoder: Encoder
    info: TokenizerInfo
    lossy: str
    """"" when PROBE survives a round trip, else what became of it."""


def load(
    path: str,
    eos_token: str | None = None,
    pad_token: str | None = None,
    bos_token: str | None = None,
) -> LoadedTokenizer:
    """Loads a tokenizer and resolves its special tokens.

    Raises UserError when the file is none, or has no end-of-document token (naming candidates).
    """
    file = Path(path)
    try:
        with file.open("rb") as f:
            head = f.read(64)
    except OSError as e:
        raise UserError(
            f"tokenizer.path: cannot read {path}: {e.strerror}; "
            "give a SentencePiece .model or a tokenizer.json file"
        ) from e
    if not head:  # the SentencePiece library takes it for "no model yet"
        raise UserError(f"tokenizer.path: {path} is empty")
    as_json = head.lstrip().startswith(b"{")
    encoder: Encoder = HuggingFaceEncoder(file) if as_json else SentencePieceEncoder(file)
    if encoder.vocab_size >= 2**31:
        raise UserError(f"{path} has {encoder.vocab_size:,} ids; they must fit int32")
    eos = _special(encoder, path, "eos_token", eos_token, EOS_CANDIDATES)
    if eos is None:
        raise UserError(
            f"{path} has no end-of-document token: none of {', '.join(EOS_CANDIDATES)} is in its "
            "vocabulary; name one with tokenizer.eos_token"
        )
    pad = _special(encoder, path, "pad_token", pad_token, PAD_CANDIDATES)
    info = TokenizerInfo(
        path=path,
        kind=encoder.kind,
        sha256=sha256_file(file),
        vocab_size=encoder.vocab_size,
        eos_id=eos,
        # Masks come from positions, never from ids, so any id may fill the padding.
        pad_id=eos if pad is None else pad,
        bos_id=_special(
            encoder, path, "bos_token", bos_token, ("<s>", "[CLS]", "<|begin_of_text|>")
        ),
    )
    back = encoder.decode(encoder.encode([PROBE])[0])
    return LoadedTokenizer(
        encoder, info, "" if back == PROBE else f"{PROBE!r} comes back as {back!r}"
    )


def _special(
    encoder: Encoder, path: str, key: str, asked: str | None, candidates: Sequence[str]
) -> int | None:
    """Id of the asked token, or of the first candidate in the vocabulary."""
    if asked is None:
        return next((i for c in candidates if (i := encoder.id_of(c)) is not None), None)
    found = encoder.id_of(asked)
    if found is None:
        have = [c for c in candidates if encoder.id_of(c) is not None]
        raise UserError(
            f"tokenizer.{key}: {asked!r} is not in the vocabulary of {path}; "
            f"it has: {', '.join(have) or 'none of the usual names'}"
        )
    return found


def flatten(
    ids: Sequence[Sequence[int]], prefix: int | None, suffix: int | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Lists of ids -> (flat int32[n], offsets int64[d+1]), each with the prefix and suffix id."""
    before = [] if prefix is None else [prefix]
    after = [] if suffix is None else [suffix]
    extra = len(before) + len(after)
    lengths = np.fromiter((len(x) + extra for x in ids), np.int64, len(ids))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.empty(int(offsets[-1]), np.int32)
    for x, start, stop in zip(ids, offsets[:-1], offsets[1:]):
        flat[start:stop] = before + list(x) + after if extra else x
    return flat, offsets
