"""The configuration of a build: each stage's own, and where things go."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dataprep.clean import Clean
from dataprep.dedup.config import Dedup
from dataprep.engine import Engine
from dataprep.errors import UserError
from dataprep.files import check_path
from dataprep.mindrecord import fit_layout
from dataprep.pack import Pack, Preset, check_columns, column_lengths
from dataprep.readers import Input, Read
from dataprep.storage import Place, Remote, absolute, is_url
from dataprep.tokens import Tokenize


@dataclass(frozen=True)
class Eval:
    """The held-out part."""

    fraction: float = 0.001
    """Share of documents for eval/; whole duplicate clusters go to one side."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise UserError(f"eval.fraction is {self.fraction}; it must be in 0..1, below 1")


@dataclass(frozen=True)
class Write:
    """The shards."""

    shards: int = 64
    """MindRecord files in train/ (fewer when there are fewer documents; with max_tokens, an error
    when one would be empty)."""
    columns: Preset | list[str] = "mindformers"
    """What a row is stored as. mindformers: input_ids, labels, loss_mask, position_ids [,
    actual_seq_len], all as the model takes them; legacy: input_ids of S+1, for use_legacy: True;
    legacy_labels: input_ids and labels of S+1, not shifted; compact: input_ids of S+1 and segments,
    a third of the bytes, all else follows; or a list of mindformers' columns."""
    buffer_mib: int = 512
    """Tokens of one shard held in memory (MiB); a larger shard is spilled again and made part by
    part. Changes no byte of the output."""

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= 99_999:
            raise UserError(f"write.shards is {self.shards}; it must be in 1..99999")
        if self.buffer_mib < 1:
            raise UserError(f"write.buffer_mib is {self.buffer_mib}; it must be 1 or more")


class Target:
    """What any run that makes an output folder has among its keys, and what follows from them."""

    out_dir: str
    work_dir: str | None
    overwrite: bool
    pack: Pack
    write: Write
    engine: Engine

    def check_target(self) -> None:
        """Raises UserError when the folders or the rows cannot be made."""
        check_path("out_dir", self.out_dir)
        if self.work_dir is not None:
            check_path("work_dir", self.work_dir)
        if not self.out.name:
            raise UserError(
                f"out_dir is {self.out_dir}; name a folder that can be replaced as a whole"
            )
        if inside(self.work, self.out) or inside(self.work, self.building):
            raise UserError(
                f"work_dir {self.work} lies inside of the output folder; name another, the output "
                "folder is published as a whole"
            )
        check_columns(self.write.columns, self.pack.isolate_documents)
        fit_layout(self.columns, 1)  # a row that fits no page is refused before any work

    def content(self) -> dict[str, Any]:
        """All keys that may change a byte of the output, JSON-able."""
        raise NotImplementedError

    @property
    def columns(self) -> dict[str, int]:
        """Column name -> length of its int32 array, in loading order."""
        return column_lengths(self.write.columns, self.pack.seq_length, self.pack.ends)

    @property
    def out(self) -> Place:
        """The output folder, absolute; a link to a folder stays one, its target is replaced."""
        return absolute(self.out_dir)

    @property
    def building(self) -> Place:
        """Where the output grows until it is complete: beside `out`, to end with one rename."""
        return self.out.with_name(self.out.name + ".building")

    @property
    def work(self) -> Place:
        """Folder of intermediate files."""
        if self.work_dir:
            return absolute(self.work_dir)
        return self.out.with_name(self.out.name + ".work")


@dataclass(frozen=True)
class BuildConfig(Target):
    """Raw text to MindRecord shards."""

    inputs: list[Input]
    """What to read."""
    tokenizer: Tokenize
    """The tokenizer."""
    out_dir: str
    """Output folder, a path or a URL; belongs to one run, complete when manifest.json is there."""
    work_dir: str | None = None
    """Intermediate files and receipts, may be deleted after success; default: OUT_DIR.work."""
    overwrite: bool = False
    """Replace an output folder that holds another run."""
    dry_run: bool = False
    """Print the plan (tasks, sizes, what is done, what would be redone and why) and do nothing."""
    seed: int = 17
    """Of the shuffle, of the eval split, and of what weights and max_tokens leave out."""
    max_tokens: int | None = None
    """At most this many tokens in train, copies included, after the limits of single inputs; whole
    documents are kept in a seeded order, the same share of every input."""
    read: Read = field(default_factory=Read)
    """How to read."""
    clean: Clean = field(default_factory=Clean)
    """How to clean."""
    dedup: Dedup = field(default_factory=Dedup)
    """How to find duplicates."""
    eval: Eval = field(default_factory=Eval)
    """The held-out part."""
    pack: Pack = field(default_factory=Pack)
    """How documents become rows."""
    write: Write = field(default_factory=Write)
    """The shards."""
    engine: Engine = field(default_factory=Engine)
    """Where tasks run."""

    def __post_init__(self) -> None:
        self.check_target()
        check_path("tokenizer.path", self.tokenizer.path)
        if is_url(self.tokenizer.path):
            raise UserError(
                f"tokenizer.path is {self.tokenizer.path}; it must be a file of this machine: "
                "copy it here first"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}; it must be 0 or more, below 2**63")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}; it must be 1 or more")

    def content(self) -> dict[str, Any]:
        """All keys that may change a byte of the output, JSON-able."""
        config = asdict(self)
        for key in ("out_dir", "work_dir", "overwrite", "dry_run", "engine"):
            del config[key]
        del config["write"]["buffer_mib"]
        config["inputs"].sort(key=lambda entry: entry["path"])  # their order changes nothing
        return config


def inside(a: Place, b: Place) -> bool:
    """Whether a lies in b; a path lies in no URL."""
    if isinstance(a, Remote):
        return a.is_relative_to(b)
    return isinstance(b, Path) and a.is_relative_to(b)
