"""Tokenized data in and out: Megatron .bin/.idx, and tokenized Hugging Face data sets in.

python -m pipelines.convert import DATA... --out_dir OUT --tokenizer.path TOK
python -m pipelines.convert export OUT PREFIX [--split train]
"""

import json
import sys
from collections.abc import Sequence

from dataprep.convert import (
    ExportConfig,
    Exported,
    ImportConfig,
    export_megatron,
    import_tokens,
)
from dataprep.corpus import BuildResult
from dataprep.errors import UserError, printable
from dataprep.mindformers import write_mindformers
from dataprep.report import write_report
from pipelines import build_corpus
from pipelines.common import human, parse_config, run

USAGE = """\
usage: mindprep convert import DATA... --out_dir OUT --tokenizer.path TOK [--KEY VALUE ...]
       mindprep convert export OUT PREFIX [--split train] [--KEY VALUE ...]

  import  documents that are tokenized already, to an output folder as the build makes it. DATA: a
          Megatron prefix (PREFIX.bin and PREFIX.idx), a folder of Dataset.save_to_disk, Arrow or
          Parquet files, or a pattern of these
  export  an output folder to PREFIX.bin and PREFIX.idx for Megatron: each document once, in order

mindprep convert import --help, mindprep convert export --help: all keys"""


def main(argv: Sequence[str] | None = None) -> int:
    """Imports or exports, and prints a summary."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if args else 2
    what, *rest = args
    names = [*_leading(rest)]
    flags = rest[len(names) :]
    if what == "import":
        given = ["--inputs", json.dumps([{"path": name} for name in names])] if names else []
        config = parse_config(
            ImportConfig,
            [*flags, *given],
            "mindprep convert import",
            "Tokenized documents to MindRecord shards. DATA before the first key is short for "
            "inputs with nothing but a path.",
        )
        print(imported(import_tokens(config, [write_mindformers(config.out), write_report])))
        return 0
    if what == "export":
        if len(names) > 2:
            raise UserError(f"export takes OUT and PREFIX, not {len(names)} names")
        given = [part for pair in zip(("--out_dir", "--prefix"), names) for part in pair]
        settings = parse_config(
            ExportConfig,
            [*flags, *given],
            "mindprep convert export",
            "An output folder to a Megatron IndexedDataset. OUT and PREFIX before the first key "
            "are short for out_dir and prefix.",
        )
        print(exported(export_megatron(settings)))
        return 0
    raise UserError(f"convert knows import and export, not {what!r}")


def _leading(args: Sequence[str]) -> list[str]:
    """What stands before the first flag."""
    first = next((i for i, arg in enumerate(args) if arg.startswith("-")), len(args))
    return list(args[:first])


def imported(result: BuildResult) -> str:
    """The build's summary, and tokens a second."""
    text = build_corpus.summary(result)
    seconds = sum(result.seconds.values())
    if not seconds:
        return text
    tokens = result.ledger.total("tokens.placed")
    return f"{text}\nrate       {human(tokens / seconds)} tokens/s"


def exported(result: Exported) -> str:
    """What was written, at what rate, and where it is."""
    rate = result.bytes / 1e6 / max(result.seconds, 1e-9)
    lines = [
        f"documents  {result.documents:,}",
        f"tokens     {human(result.tokens)} as {result.dtype}",
        f"time       {result.seconds:.1f} s, {rate:.1f} MB/s, "
        f"{human(result.tokens / max(result.seconds, 1e-9))} tokens/s",
        *(f"note       {printable(note)}" for note in result.notes),
        f"output     {printable(str(result.prefix))}.bin and .idx, {human(result.bytes)}B",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
