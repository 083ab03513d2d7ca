"""The configuration of an import: what is read, what its ids mean, and how rows are made."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dataprep.convert.inputs import Tokenized
from dataprep.corpus.config import Target, Write
from dataprep.engine import Engine
from dataprep.errors import UserError
from dataprep.files import check_path
from dataprep.manifest import TokenizerInfo
from dataprep.pack import Pack
from dataprep.storage import is_url
from dataprep.tokens import load


@dataclass(frozen=True)
class Vocabulary:
    """What the ids mean: the tokenizer that made them, or at least its numbers."""

    path: str | None = None
    """The tokenizer that made the ids (a SentencePiece .model or a tokenizer.json file)."""
    eos_token: str | None = None
    """With a path: name of the end-of-document token; default: the tokenizer's usual one."""
    pad_token: str | None = None
    """With a path: name of the padding token; default: the tokenizer's, else end-of-document."""
    vocab_size: int | None = None
    """Number of ids; needed without a path."""
    eos_id: int | None = None
    """The end-of-document id; needed without a path. It is not added: ids stay as they are."""
    pad_id: int | None = None
    """The id that fills rows; default without a path: eos_id."""

    def __post_init__(self) -> None:
        if self.path is not None:
            check_path("tokenizer.path", self.path)
            if is_url(self.path):
                raise UserError(f"tokenizer.path is {self.path}; copy the file here first")
        else:
            for key in ("vocab_size", "eos_id"):
                if getattr(self, key) is None:
                    raise UserError(
                        f"tokenizer: give the path of the tokenizer that made the ids, or its "
                        f"vocab_size and eos_id ({key} is missing)"
                    )
            for key in ("eos_token", "pad_token"):
                if getattr(self, key) is not None:
                    raise UserError(f"tokenizer.{key} is a name, which needs tokenizer.path")
        if self.vocab_size is not None and not 1 <= self.vocab_size < 2**31:
            raise UserError(
                f"tokenizer.vocab_size is {self.vocab_size}; it must be 1 or more, below 2**31"
            )

    def info(self) -> TokenizerInfo:
        """What the manifest says of the tokenizer; kind "none" without one.

        Raises UserError when it cannot be loaded, or an id is not of its vocabulary.
        """
        if self.path is not None:
            found = load(self.path, self.eos_token, self.pad_token).info
        else:
            assert self.vocab_size is not None and self.eos_id is not None
            found = TokenizerInfo("", "none", "", self.vocab_size, self.eos_id, self.eos_id)
        given = {key: getattr(self, key) for key in ("vocab_size", "eos_id", "pad_id")}
        found = replace(found, **{key: value for key, value in given.items() if value is not None})
        for key in ("eos_id", "pad_id"):
            value = getattr(found, key)
            if not 0 <= value < found.vocab_size:
                raise UserError(
                    f"tokenizer.{key} is {value}; the vocabulary has ids 0..{found.vocab_size - 1}"
                )
        return found


@dataclass(frozen=True)
class ImportConfig(Target):
    """Tokenized documents to MindRecord shards."""

    inputs: list[Tokenized]
    """What to read."""
    tokenizer: Vocabulary
    """What the ids mean."""
    out_dir: str
    """Output folder, a path or a URL; belongs to one run, complete when manifest.json is there."""
    work_dir: str | None = None
    """Intermediate files and receipts, may be deleted after success; default: OUT_DIR.work."""
    overwrite: bool = False
    """Replace an output folder that holds another run."""
    shuffle: bool = True
    """Documents of all inputs mix, by a seeded hash; false: they stay in the order of the inputs
    (by path), which pack.strategy concat keeps within a shard too."""
    seed: int = 17
    """Of the shuffle."""
    pack: Pack = field(default_factory=Pack)
    """How documents become rows."""
    write: Write = field(default_factory=Write)
    """The shards."""
    engine: Engine = field(default_factory=Engine)
    """Where tasks run."""

    def __post_init__(self) -> None:
        self.check_target()
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}; it must be 0 or more, below 2**63")

    def content(self) -> dict[str, Any]:
        """All keys that may change a byte of the output, JSON-able. Without `tokenizer`: what came
        of it stands in the manifest, and text was not tokenized by it."""
        config = asdict(self)
        for key in ("out_dir", "work_dir", "overwrite", "engine", "tokenizer"):
            del config[key]
        del config["write"]["buffer_mib"]
        config["inputs"].sort(key=lambda entry: entry["path"])  # their order changes nothing
        return config
