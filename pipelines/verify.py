"""Proves an output folder, or one MindRecord file: a summary (exit 0), or every defect (exit 1).

python -m pipelines.verify OUT [--fast] [--repair]
python -m pipelines.verify FILE.mindrecord [--fast] [--repair]
"""

import argparse
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from dataprep.engine.progress import Reporter
from dataprep.errors import printable
from dataprep.verify import Verdict, verify, verify_file
from pipelines.common import human, output_folder, run

DESCRIPTION = """Re-reads every shard with MindSpore and checks hashes, rows, labels, masks,
positions, segments, the ledger and the audit. Exit 0: all is well; 1: every defect is listed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies and prints."""
    parser = argparse.ArgumentParser(prog="mindprep verify", description=DESCRIPTION)
    parser.add_argument(
        "out", type=output_folder, help="output folder of a build, or one MindRecord file"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="read with mindprep's own reader, without MindSpore; all other checks are the same",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="first make missing or stale .db files again, give renamed files their names back, "
        "and write mindformers.yaml for the folder as it lies now",
    )
    args = parser.parse_args(argv)
    check = verify_file if args.out.is_file() else verify
    with _Progress() as progress:
        verdict = check(args.out, fast=args.fast, repair=args.repair, progress=progress)
    for line in told(verdict):
        print(printable(line))
    return 1 if verdict.defects else 0


def told(verdict: Verdict) -> list[str]:
    """What was repaired, what a person should know, every defect, and a summary."""
    rate = verdict.bytes / 1e6 / max(verdict.seconds, 1e-9)
    notes, defects = len(verdict.notes), len(verdict.defects)
    end = f"{defects} defect{'s' * (defects != 1)}" if defects else "verified"
    if notes:
        end += f", with {notes} note{'s' * (notes != 1)}"
    unread = f" ({verdict.unread} of them not proved)" if verdict.unread else ""
    return [
        *(f"repaired: {line}" for line in verdict.repaired),
        *(f"note: {line}" for line in verdict.notes),
        *(f"DEFECT: {line}" for line in verdict.defects),
        f"{verdict.shards} shards{unread}, {verdict.rows:,} rows, {verdict.tokens:,} tokens, "
        f"{human(verdict.bytes)}B in {verdict.seconds:.1f} s ({rate:.1f} MB/s), read by "
        f"{verdict.reader}: {end}",
    ]


class _Progress:
    """A bar on a terminal, else a plain line every 30 seconds; nothing before the first call."""

    def __init__(self) -> None:
        self._reporter: Reporter | None = None
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        if self._reporter is None:
            self._reporter = Reporter("verify", total)
            self._reporter.__enter__()
        self._reporter.advance(done - self._done)
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._reporter:
            self._reporter.__exit__(kind, value, tb)


if __name__ == "__main__":
    sys.exit(run(main))
