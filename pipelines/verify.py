"""Proves an output folder: exit 0 and a summary, or exit 1 and every defect.

python -m pipelines.verify OUT
"""

import argparse
import sys
from collections.abc import Sequence

from dataprep.errors import printable
from dataprep.verify import verify
from pipelines.common import output_folder, run


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies and prints."""
    parser = argparse.ArgumentParser(
        prog="mindprep verify",
        description="Re-reads every shard with MindSpore and checks hashes, rows, labels, masks, "
        "positions, the ledger and the audit. Exit 0: all is well; 1: every defect is listed.",
    )
    parser.add_argument("out", type=output_folder, help="output folder of a build")
    verdict = verify(parser.parse_args(argv).out)
    for note in verdict.notes:
        print(f"note: {printable(note)}")
    for defect in verdict.defects:
        print(f"DEFECT: {printable(defect)}")
    print(
        f"{verdict.shards} shards, {verdict.rows:,} rows, {verdict.tokens:,} tokens: "
        f"{'verified' if not verdict.defects else f'{len(verdict.defects)} defects'}"
    )
    return 1 if verdict.defects else 0


if __name__ == "__main__":
    sys.exit(run(main))
