"""Every way to spread a run over up to 8 processes, against one process: `make parity`.

    python -m tests.training.parity_matrix [--processes 1 2 4 8] [--all]

Every combination of a layout's switches on 2 processes; on 4 and 8, so many that each pair of
settings of two switches is there, or with --all every combination (hours). 20 steps each, the same
rows. Float32: loss, gradient norm, eval loss and every final weight within
1e-4 relative. bfloat16 and float16 are compared with one process in the same dtype: partial sums
are rounded before they are added, so runs differ by roundings (2^-9 relative each in bfloat16,
2^-12 in float16), which 20 steps of training carry on. The bound is 16 of them for loss, norm and
eval loss, and weights are told without one.

Prints a table; exit code 1 when a bound is missed.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import machine, table
from tests.training.conftest import sequences, write_packed
from tests.training.parity import Difference, Outcome, case, compare, processes, run_cases, told

FLOAT32 = 1e-4
ROUNDINGS = {"bfloat16": 16 * 2.0**-9, "float16": 16 * 2.0**-12}
GROUP = 8  # cases of a launch


def main() -> int:
    """Runs, prints, judges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--all", action="store_true", help="all combinations, on any processes")
    args = parser.parse_args()
    documents = [document for row in sequences(40, 0) for document in row]
    with tempfile.TemporaryDirectory() as folder:
        sizes_of: dict[str, Any] = {"seq_length": 16, "vocab_size": 20}
        data = write_packed(Path(folder), documents, splits=("train", "eval"), **sizes_of)
        judges = dict(zip(KINDS, run_cases(data, [judge(*kind) for kind in KINDS]), strict=True))
        lines, held = [], True
        cases = [keys for keys in matrix(args.all) if processes(keys) in args.processes]
        for keys, outcome, seconds in outcomes(data, cases):
            difference = compare(judges[kind_of(keys)], outcome)
            good = within(keys, difference)
            held &= good
            figures = (difference.loss, difference.norm, difference.eval_loss, difference.weights)
            cells = [f"{figure:.1e}" for figure in figures]
            lines.append((told(keys), *cells, f"{seconds:.0f}", "held" if good else "BROKEN"))
            print(*lines[-1], sep="  ", file=sys.stderr, flush=True)
    print(f"{machine()}\n\nLargest relative difference from one process in 20 steps\n")
    print(table(("", "loss", "norm", "eval loss", "weights", "s", ""), lines))
    worst = f"float32 {FLOAT32}, " + ", ".join(f"{k} {v:.1e}" for k, v in ROUNDINGS.items())
    print(f"\n{len(lines)} cases; bounds: {worst}: {'held' if held else 'BROKEN'}")
    return 0 if held else 1


KINDS = [
    *itertools.product(("float32", "bfloat16", "float16"), (True,)),
    ("float32", False),
]
"""(compute dtype, tied): what has a judge of its own."""


def judge(dtype: str, tied: bool) -> dict[str, Any]:
    """One process."""
    return case(dtype=dtype, tied=tied)


def kind_of(keys: dict[str, Any]) -> tuple[str, bool]:
    """Which judge a case has."""
    dtype = keys.get("precision.compute_dtype", "float32")
    return dtype, keys.get("model.tie_word_embeddings", True)


def within(keys: dict[str, Any], difference: Difference) -> bool:
    """Whether a case holds its bound."""
    dtype = kind_of(keys)[0]
    if dtype == "float32":
        return difference.most < FLOAT32
    return max(difference.loss, difference.norm, difference.eval_loss) < ROUNDINGS[dtype]


def matrix(whole: bool) -> Iterator[dict[str, Any]]:
    """All cases, those of few processes first; `whole`: all combinations of all layouts."""
    yield from (case(micro=4), case(full=True), case(mode="pynative"), case(offload=False))
    factors = [f for f in itertools.product((1, 2), repeat=3) if f != (1, 1, 1)]
    for dp, tp, pp in sorted(factors, key=lambda f: f[0] * f[1] * f[2]):
        layout = {n: v for n, v in (("dp", dp), ("tp", tp), ("pp", pp)) if v > 1}
        options = list(combinations(dp, tp, pp))
        chosen = options if whole or dp * tp * pp == 2 else pairs(options)
        yield from (case(**layout, **one) for one in chosen)
        most = {
            "micro": 2,
            **({"zero": True} if dp > 1 else {}),
            **({"sp": True} if tp > 1 else {}),
        }
        for extra in (
            {"dtype": "bfloat16"},
            {"dtype": "float16"},
            {"tied": False},
            {"mode": "pynative"},
            {"offload": False},
            {"select": ["attention", "mlp"]},
        ):
            yield case(**layout, **most, **extra)


def combinations(dp: int, tp: int, pp: int) -> Iterator[dict[str, Any]]:
    """Every combination of the switches that a layout has."""
    switches: dict[str, tuple[Any, ...]] = {"micro": (1, 4), "full": (False, True)}
    if dp > 1:
        switches["zero"] = (False, True)
    if tp > 1:
        switches["sp"] = (False, True)
    if pp > 1:
        switches["schedule"] = ("1f1b", "gpipe")
    for values in itertools.product(*switches.values()):
        yield dict(zip(switches, values, strict=True))


def pairs(options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some of them, in which each pair of settings of two switches is that any of them has."""

    def of(one: dict[str, Any]) -> set[Any]:
        return set(itertools.combinations(one.items(), 2))

    missing = set[Any]().union(*map(of, options))
    chosen = []
    while missing:
        best = max(options, key=lambda one: len(missing & of(one)))
        chosen.append(best)
        missing -= of(best)
    return chosen


def outcomes(
    data: Path, cases: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], Outcome, float]]:
    """(case, outcome, seconds): some cases of equally many processes in one launch."""
    for _, group in itertools.groupby(cases, processes):
        some = list(group)
        for at in range(0, len(some), GROUP):
            now = some[at : at + GROUP]
            start = time.monotonic()
            found = run_cases(data, now, timeout=1800)
            each = (time.monotonic() - start) / len(now)
            yield from ((keys, outcome, each) for keys, outcome in zip(now, found, strict=True))


if __name__ == "__main__":
    sys.exit(main())
