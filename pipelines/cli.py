"""mindprep: all commands under one name."""

import importlib
import sys
from collections.abc import Sequence

from pipelines.common import run

COMMANDS = {
    "build": ("build_corpus", "raw text to MindRecord shards"),
    "tokenizer": ("train_tokenizer", "train a SentencePiece model on cleaned text"),
    "verify": ("verify", "prove an output folder: every byte, row and label"),
    "inspect": ("inspect", "show one row, decoded, with masks and document borders"),
    "trace": ("trace", "a row to its documents, or a document to its fate"),
    "report": ("report", "write report.html of an output folder anew"),
    "train": ("train", "train a small decoder on an output folder"),
    "plan": ("plan", "memory of a card, and the layout to train a model in"),
    "checkpoint": ("checkpoint", "show, merge, export to and import from Hugging Face"),
    "convert": ("convert", "tokenized data in and out: Megatron .bin/.idx, Hugging Face"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command named by the first argument."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print("usage: mindprep COMMAND [--help | ARGUMENTS]\n")
        print("\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items()))
        return 0 if args else 2
    if args[0] not in COMMANDS:
        print(f"error: no command {args[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    # Imported when asked for: training needs MindSpore, which takes seconds to load.
    module = importlib.import_module(f"pipelines.{COMMANDS[args[0]][0]}")
    return run(module.main, args[1:])


if __name__ == "__main__":
    sys.exit(main())
