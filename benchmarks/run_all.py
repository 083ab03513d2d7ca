"""Runs all benchmarks, or some, and keeps their figures in benchmarks/RESULTS.md.

python -m benchmarks.run_all [trainer bubble ...]
"""

import argparse
import datetime
import re
import subprocess
import sys

from benchmarks.common import ROOT

SCRIPTS = (
    *("end_to_end", "signatures", "writer", "loader", "engine", "plan", "busy"),
    *("trainer", "recompute", "bubble"),
)
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
HEAD = "# Last figures\n\nMachines are noisy: read the ratios."


def main() -> int:
    """Each script in a process of its own; the figures of one that fails are not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(SCRIPTS)}")
    names = parser.parse_args().names or SCRIPTS
    if unknown := set(names) - set(SCRIPTS):
        parser.error(f"no such benchmarks: {', '.join(sorted(unknown))}")
    failed = [name for name in names if not run(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run(name: str) -> bool:
    """Whether it ended well; its section is replaced then."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(f"== {name}\n{done.stdout}", flush=True)
    if done.returncode == 0:
        found = {**sections(), name: f"Taken {datetime.date.today()}.\n\n{done.stdout.strip()}"}
        parts = [HEAD, *(f"## {key}\n\n{found[key]}" for key in SCRIPTS if key in found)]
        RESULTS.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return done.returncode == 0


def sections() -> dict[str, str]:
    """What RESULTS.md has of each benchmark."""
    _, *parts = re.split(r"^## (\w+)\n", RESULTS.read_text("utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2])}


if __name__ == "__main__":
    sys.exit(main())
