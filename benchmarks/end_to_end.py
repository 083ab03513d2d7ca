"""Raw text to tokens, ours and datatrove, on the same files in the same run.

    python -m benchmarks.end_to_end [--workers 2]

datatrove: Gopher repetition and quality, C4, FineWeb; MinHash 14 x 8; GPT-2 tokens.
ours:      Gopher quality, garbled, punctuation only; MinHash 128 with verified Jaccard; GPT-2
           tokens; and packing and writing MindRecord shards, which datatrove does not do.

Rules that differ are named below the table; so is the work that only one of them does.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, Skip, machine, peer_python, real, table
from dataprep.clean import Clean
from dataprep.corpus import BuildConfig, BuildResult, Write, build
from dataprep.engine import Engine
from dataprep.pack import Pack
from dataprep.readers import Input
from dataprep.tokens import Tokenize

DIFFERENCES = """\
Only datatrove: Gopher repetition, C4 and FineWeb rules (not in this version of mindprep).
Only mindprep: unicode repair, exact duplicates, verified similarity, the audit of every removed
document, packing with labels and masks, MindRecord shards with hashes."""


def ours(inputs: list[Path], tokenizer: Path, work: Path, workers: int) -> BuildResult:
    """One build from scratch."""
    return build(
        BuildConfig(
            inputs=[Input(str(path)) for path in inputs],
            tokenizer=Tokenize(str(tokenizer)),
            out_dir=str(work / "out"),
            clean=Clean(rules=["garbled", "punctuation_only", "gopher_quality"]),
            pack=Pack(seq_length=2048),
            write=Write(shards=4),
            engine=Engine(workers=workers, quiet=True),
        )
    )


def peer(inputs: list[Path], tokenizer: Path, work: Path, workers: int) -> dict[str, object]:
    """One run of datatrove in its own environment; its JSON line."""
    command = [peer_python("datatrove"), str(ROOT / "benchmarks/peers/datatrove_corpus.py")]
    command += ["--inputs", *map(str, inputs), "--tokenizer", str(tokenizer)]
    command += ["--work", str(work / "datatrove"), "--workers", str(workers)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise Skip(f"datatrove failed: {run.stderr.strip()[-300:]}")
    return json.loads(run.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Runs both and prints MB/s, per stage and in total."""
    parser = argparse.ArgumentParser(description="Raw text to tokens: ours and datatrove.")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    inputs = [real("en/openwebtext_1k.jsonl"), real("en/readmes.jsonl")]
    tokenizer = real("tokenizers/gpt2/tokenizer.json")
    megabytes = sum(path.stat().st_size for path in inputs) / 1e6
    work = Path(tempfile.mkdtemp())
    try:
        ours(inputs, tokenizer, work / "warm", 1)  # compiles the kernels, once for a machine
        mine = ours(inputs, tokenizer, work / "mine", args.workers)
        theirs = peer(inputs, tokenizer, work, args.workers)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(report(mine, theirs, megabytes, args.workers))


def report(mine: BuildResult, theirs: dict[str, object], megabytes: float, workers: int) -> str:
    """The table: stages that do the same, then the totals."""
    a, dedup, b, c, publish = mine.seconds.values()
    told = theirs["seconds"]
    assert isinstance(told, dict)
    total = float(str(theirs["total"]))
    pairs = [
        ("read, clean, sign", a, told["clean"] + told["signatures"]),
        ("duplicates", dedup, told["dedup"]),
        ("tokenize", b, told["tokenize"]),
        ("pack, write, publish", c + publish, None),
        ("total", sum(mine.seconds.values()), total),
    ]
    rows = [
        (name, x, megabytes / x, y or "-", megabytes / y if y else "-", y / x if y else "-")
        for name, x, y in pairs
    ]
    head = ("stage", "mindprep s", "MB/s", "datatrove s", "MB/s", "ratio")
    ledger = mine.ledger
    return "\n".join(
        [
            f"{megabytes:.1f} MB of JSONL, {workers} workers; {machine()}",
            "",
            table(head, rows),
            "",
            f"kept: mindprep {ledger.total('documents.kept'):,} of "
            f"{ledger.total('documents.read'):,} documents, "
            f"{ledger.total('tokens.placed'):,} tokens; datatrove {theirs['documents_out']:,} of "
            f"{theirs['documents_in']:,}, {theirs['tokens']:,} tokens",
            DIFFERENCES,
        ]
    )


if __name__ == "__main__":
    try:
        main()
    except Skip as e:
        print(f"skipped: {e}")
        sys.exit(0)
