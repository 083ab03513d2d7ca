"""Raw text to training-ready MindRecord shards.

python -m pipelines.build_corpus --config C.yaml [--pack.seq_length 2048 ...]
"""

import argparse
import sys
from collections.abc import Sequence

from dataprep.corpus import BuildConfig, BuildResult, build
from dataprep.corpus.status import dry_run, status
from dataprep.errors import printable
from dataprep.mindformers import write_mindformers
from dataprep.report import write_report
from dataprep.storage import absolute
from pipelines.common import human, parse_config, run

DESCRIPTION = """Raw text to training-ready MindRecord shards. `--dry_run true` says what a run
would do and why; `mindprep build --status OUT [WORK_DIR]` how far one is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a corpus and prints its summary."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] == ["--status"]:
        return _status(args[1:])
    config = parse_config(BuildConfig, args, "mindprep build", DESCRIPTION)
    if config.dry_run:
        for line in dry_run(config):
            print(line)
        return 0
    result = build(config, finish=[write_mindformers(config.out), write_report])
    print(summary(result))
    return 0


def _status(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mindprep build --status")
    parser.add_argument("out", help="output folder of the run")
    parser.add_argument("work_dir", nargs="?", help="its work_dir, if it had its own")
    args = parser.parse_args(argv)
    for line in status(absolute(args.out), absolute(args.work_dir) if args.work_dir else None):
        print(line)
    return 0


def summary(result: BuildResult) -> str:
    """What was read, kept and removed, at what rate, and where it is."""
    ledger, manifest = result.ledger, result.manifest
    seconds = sum(result.seconds.values())
    lines = [
        f"documents  {ledger.total('documents.read'):,} read, "
        f"{ledger.total('documents.kept'):,} kept",
        *(f"  removed  {n:,} {rule}" for rule, n in ledger.below("documents.removed.").items()),
        f"tokens     {human(ledger.total('tokens.placed'))} in rows of {manifest.seq_length}, "
        f"{ledger.total('slots.padding') / max(ledger.total('slots.total'), 1):.2%} padding",
        f"targets    {human(ledger.total('targets.trained'))}",
    ]
    for split, shards in manifest.splits.items():
        size = sum(shard.bytes for shard in shards)
        lines.append(
            f"{split:<10} {manifest.rows(split):,} rows in {len(shards)} shards, {human(size)}B"
        )
    if seconds:
        rate = result.input_bytes / 1e6 / seconds
        each = ", ".join(f"{name} {s:.1f} s" for name, s in result.seconds.items())
        lines.append(f"time       {seconds:.1f} s, {rate:.2f} MB/s of input ({each})")
    else:
        lines.append("time       none: this corpus was built before, nothing is left to do")
    lines += [f"note       {printable(note)}" for note in manifest.notes]
    lines.append(
        f"output     {printable(str(result.out_dir))} (report.html, manifest.json, audit/)"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
