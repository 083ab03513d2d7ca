"""Runs all benchmarks and keeps their figures in benchmarks/RESULTS.md.

python -m benchmarks.run_all
"""

import datetime
import subprocess
import sys

from benchmarks.common import ROOT

SCRIPTS = (
    *("end_to_end", "signatures", "writer", "loader", "engine", "plan", "busy"),
    *("trainer", "recompute", "bubble"),
)


def main() -> int:
    """Each script in a process of its own; fails when one fails."""
    parts = [
        f"# Last figures\n\nTaken {datetime.date.today()}. Machines are noisy: read the ratios."
    ]
    failed = False
    for name in SCRIPTS:
        run = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        print(f"== {name}\n{run.stdout}", flush=True)
        failed |= run.returncode != 0
        parts.append(f"## {name}\n\n{run.stdout.strip()}")
    if not failed:
        (ROOT / "benchmarks" / "RESULTS.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
