"""Writes report.html of an output folder anew.

python -m pipelines.report OUT
"""

import argparse
import sys
from collections.abc import Sequence

from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.report import NAME, write_report
from dataprep.sums import change_sum
from pipelines.common import output_folder, run


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page and prints its path."""
    parser = argparse.ArgumentParser(
        prog="mindprep report", description="Writes report.html of an output folder anew."
    )
    parser.add_argument("out", type=output_folder, help="output folder of a build")
    out = parser.parse_args(argv).out
    write_report(Manifest.load(out), out)
    change_sum(out, NAME, sha256_file(out / NAME))
    print(out / NAME)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
