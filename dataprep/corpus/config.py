"""The configuration of a build: each stage's own, and where things go."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dataprep.clean import Clean
from dataprep.dedup.config import Dedup
from dataprep.engine import Engine
from dataprep.errors import UserError
from dataprep.files import check_path
from dataprep.mindrecord import fit_layout
from dataprep.pack import Pack
from dataprep.readers import Input, Read
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
    """MindRecord files in train/ (fewer when there are fewer documents)."""
    columns: Literal["mindformers"] = "mindformers"
    """mindformers: input_ids, labels, loss_mask, position_ids [, actual_seq_len]."""

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= 99_999:
            raise UserError(f"write.shards is {self.shards}; it must be in 1..99999")


@dataclass(frozen=True)
class BuildConfig:
    """Raw text to MindRecord shards."""

    inputs: list[Input]
    """What to read."""
    tokenizer: Tokenize
    """The tokenizer."""
    out_dir: str
    """Output folder; belongs to one run, appears when it is complete."""
    work_dir: str | None = None
    """Intermediate files and receipts, may be deleted after success; default: OUT_DIR.work."""
    overwrite: bool = False
    """Replace an output folder that holds another run."""
    dry_run: bool = False
    """Print the plan (tasks, sizes, what is done, what would be redone and why) and do nothing."""
    seed: int = 17
    """Of the shuffle and of the eval split."""
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
        check_path("out_dir", self.out_dir)
        check_path("tokenizer.path", self.tokenizer.path)
        if self.work_dir is not None:
            check_path("work_dir", self.work_dir)
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}; it must be 0 or more, below 2**63")
        if not self.out.name:
            raise UserError(
                f"out_dir is {self.out_dir}; name a folder that can be replaced as a whole"
            )
        if self.work.is_relative_to(self.out) or self.work.is_relative_to(self.building):
            raise UserError(
                f"work_dir {self.work} lies inside of the output folder; name another, the output "
                "folder is published by one rename"
            )
        fit_layout(self.pack.columns(), 1)  # a row that fits no page is refused before any work

    @property
    def out(self) -> Path:
        """The output folder, absolute; a link to a folder stays one, its target is replaced."""
        return Path(self.out_dir).resolve()

    @property
    def building(self) -> Path:
        """Where the output grows until it is complete; beside `out`, so that one rename ends it."""
        return self.out.with_name(self.out.name + ".building")

    @property
    def work(self) -> Path:
        """Folder of intermediate files."""
        if self.work_dir:
            return Path(self.work_dir).resolve()
        return self.out.with_name(self.out.name + ".work")

    def content(self) -> dict[str, Any]:
        """All keys that may change a byte of the output, JSON-able."""
        config = asdict(self)
        for key in ("out_dir", "work_dir", "overwrite", "dry_run", "engine"):
            del config[key]
        config["inputs"].sort(key=lambda entry: entry["path"])  # their order changes nothing
        return config
