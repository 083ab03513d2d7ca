"""manifest.json: what an output folder holds, written last; its presence means "complete".

    out/manifest.json
    out/train/train-00000-of-00004.mindrecord (+ .db)
    out/eval/eval-00000-of-00001.mindrecord (+ .db)

The manifest names every shard in order with its hash, so a loader needs no directory walk and a
checker needs no trust. It holds no time and no output path, so that two runs over the same inputs
write equal manifests. A checksum covers all of it.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from dataprep.errors import UserError
from dataprep.files import fingerprint, read_json, write_json
from dataprep.storage import Place, entry

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Shard:
    """One MindRecord file and its index."""

    path: str
    """Relative to the output folder, with forward slashes."""
    rows: int
    tokens: int
    """Tokens placed (slots without padding)."""
    bytes: int
    sha256: str
    index_sha256: str
    """Of the SQLite index beside it (`path` + ".db")."""
    audit_sha256: str = ""
    """Of audit/rows/NAME.parquet, which says which documents stand in its rows; "" in manifests of
    versions before 0.3."""


def _identity(shard: Shard) -> dict[str, Any]:
    """What names a shard; its audit explains the data and is no part of it."""
    content = asdict(shard)
    del content["audit_sha256"]
    return content


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer that made the ids, so that a trainer can refuse another one."""

    path: str
    kind: str
    """"sentencepiece" or "tokenizers"."""
    sha256: str
    vocab_size: int
    eos_id: int
    pad_id: int
    bos_id: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    seq_length: int
    """Slots in a row (S)."""
    preset: str
    """Column preset, e.g. "mindformers"."""
    columns: dict[str, int]
    """Column name -> length of its int32 array, in the order a loader should ask for them."""
    isolate_documents: bool
    """True: attention must not cross documents; the last column is `actual_seq_len`."""
    tokenizer: TokenizerInfo
    splits: dict[str, list[Shard]]
    """"train" and, unless empty, "eval" -> shards in order."""
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Sorted input files: path, source, format, bytes, rows."""
    config: dict[str, Any] = field(default_factory=dict)
    """The build's config without folders and engine, which change no byte."""
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What a person should know, such as a damaged input file."""
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """64 hex digits that name this data set: shards, columns and tokenizer, nothing else."""
        shards = {name: [_identity(s) for s in split] for name, split in self.splits.items()}
        return fingerprint([self.seq_length, self.columns, self.tokenizer.sha256, shards])

    def rows(self, split: str) -> int:
        """Number of rows in a split; 0 when there is none."""
        return sum(shard.rows for shard in self.splits.get(split, []))

    def files(self, out_dir: Place, split: str) -> list[str]:
        """Shard paths of a split, in order, for MindDataset.

        Raises UserError when the data set has no such split.
        """
        if not self.splits.get(split):
            have = ", ".join(name for name, shards in self.splits.items() if shards)
            raise UserError(f"{out_dir} has no split {split!r}; it has: {have or 'none'}")
        return [str(out_dir / shard.path) for shard in self.splits[split]]

    def save(self, out_dir: Place) -> None:
        """Writes out_dir/manifest.json atomically."""
        content = asdict(self)
        seals = {"fingerprint": self.fingerprint, "checksum": fingerprint(content)}
        write_json(out_dir / NAME, {**content, **seals})

    @classmethod
    def load(cls, out_dir: Place) -> "Manifest":
        """Reads and checks out_dir/manifest.json.

        Raises UserError when it is missing, damaged, of another format, or edited.
        """
        path = out_dir / NAME
        if entry(path) is None:
            raise UserError(
                f"{out_dir} holds no {NAME}: not a finished output folder of build_corpus; "
                "check the path, or run the build again to finish it"
            )
        raw = read_json(path)
        try:
            if raw["format"] != FORMAT:
                raise UserError(f"{path} has format {raw['format']}, this version reads {FORMAT}")
            stored, checksum = raw.pop("fingerprint"), raw.pop("checksum")
            whole = fingerprint(raw)
            raw["tokenizer"] = TokenizerInfo(**raw["tokenizer"])
            raw["splits"] = {k: [Shard(**s) for s in v] for k, v in raw["splits"].items()}
            manifest = cls(**raw)
            actual = manifest.fingerprint
        except (KeyError, TypeError, AttributeError) as e:
            raise UserError(f"{path} is damaged: {type(e).__name__} {e}") from e
        if (stored, checksum) != (actual, whole):
            raise UserError(f"{path} was changed after it was written: its checksum differs")
        return manifest
