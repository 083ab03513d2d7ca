"""Tokens: documents become ids, with an end-of-document id after each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dataprep.errors import UserError
from dataprep.ledger import TaskLedger
from dataprep.tokens.tokenizer import LoadedTokenizer, flatten, load

__all__ = ["LoadedTokenizer", "Tokenize", "load"]

_TEXTS = 256  # documents a call of the tokenizer: bounds the lists of Python ints in memory


@dataclass(frozen=True)
class Tokenize:
    """Which tokenizer, and what stands around a document."""

    path: str
    """A SentencePiece .model or a Hugging Face tokenizer.json file."""
    add_bos: bool = False
    """Begin each document with the beginning-of-document id."""
    add_eos: bool = True
    """End each document with the end-of-document id."""
    eos_token: str | None = None
    """Name of the end-of-document token; default: the tokenizer's usual one."""
    bos_token: str | None = None
    """Name of the beginning-of-document token; default: the tokenizer's usual one."""
    pad_token: str | None = None
    """Name of the padding token; default: the tokenizer's, else the end-of-document token."""

    def load(self) -> LoadedTokenizer:
        """Loads the tokenizer. Raises UserError when a token it needs is missing."""
        loaded = load(self.path, self.eos_token, self.pad_token, self.bos_token)
        if self.add_bos and loaded.info.bos_id is None:
            raise UserError(
                f"tokenizer.add_bos: {self.path} has no beginning-of-document token; "
                "name one with tokenizer.bos_token"
            )
        return loaded

    def __call__(
        self, batches: Iterator[pa.RecordBatch], ledger: TaskLedger
    ) -> Iterator[pa.RecordBatch]:
        """Batches with `split`, `row` and `text` in; out, `tokens` (large_list<int32>) in place of
        `text`, and all other columns as they came.

        Counts tokens.tokenized and documents.kept. A document without a single token of its own is
        removed.
        """
        loaded = self.load()
        bos = loaded.info.bos_id if self.add_bos else None
        eos = loaded.info.eos_id if self.add_eos else None
        for whole in batches:
            for start in range(0, whole.num_rows, _TEXTS):
                batch = whole.slice(start, _TEXTS)
                ids = loaded.encoder.encode(batch.column("text").to_pylist())
                batch = batch.drop_columns(["text"])
                if not all(ids):
                    keep = np.array([len(x) > 0 for x in ids], bool)
                    lost = batch.filter(pa.array(~keep))
                    ledger.remove(lost.column("split"), lost.column("row"), "tokens", "no_tokens")
                    batch, ids = batch.filter(pa.array(keep)), [x for x in ids if x]
                flat, offsets = flatten(ids, bos, eos)
                ledger.count("tokens.tokenized", len(flat))
                ledger.count("documents.kept", len(ids))
                tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))
                yield batch.append_column("tokens", tokens)
