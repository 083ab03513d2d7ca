"""Rows to batches: MindRecord with MindSpore, with our loader, without MindSpore, and the peers.

    python -m benchmarks.loader [--sizes 512 2048 4096 8192] [--quick] [--no-peers]

Batches of 8 rows of S tokens, a vocabulary of 32,000, about 16 million tokens a data set, in the
page cache; shuffled and in order, with 0 (in process), 1 and 2 workers. Every loader's first epoch
is summed: each row came once. loader_measure.py says what ours are, peers/README.md what theirs
are. Ours and MindDataset take turns in one process, and their ratio is the median of the rounds'
ratios; the fastest peers are measured again beside the direct reader. Every loader is measured in a
process of its own too: first batch, memory.

Prints tables and the bounds, and draws benchmarks/loader.png. Exit code 1 when a bound is missed.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.common import ROOT, Skip, machine, peer_python, table
from benchmarks.loader_plot import draw
from benchmarks.loader_run import LABELS, TURNS, Duel, Setting, Size, measure

SIZES = (512, 2048, 4096, 8192)
# To MindDataset of the same stored columns; 0: no bound, only told, for these make five training
# columns of one or two that are stored.
LEAST = {"dataset": 0.95, "loader": 0.0, "ready": 0.0, "stored": 5.0}
LEAST_READY = 0.95  # training columns, of any preset, to MindDataset of shards that hold them


def main() -> int:
    """Measures, prints, draws, judges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="S")
    parser.add_argument("--quick", action="store_true", help="a third of the time, more noise")
    parser.add_argument("--no-peers", action="store_true", help="only ours, MindDataset and NumPy")
    args = parser.parse_args()
    peers, skipped = None, ""
    if not args.no_peers:
        try:
            peers = peer_python("loader")
        except Skip as e:
            skipped = f"\nno peers: {e}"
    seconds, rounds = (0.1, 3) if args.quick else (0.25, 5)
    sizes = [measure(s, peers, seconds, rounds) for s in args.sizes]
    print(f"{machine()}{skipped}")
    for size in sizes:
        print(f"\n### S = {size.seq_length}, million tokens a second\n\n{rates_table(size)}")
    print(f"\n### To MindDataset, the same columns, by turns\n\n{ratios_table(sizes)}")
    draw(sizes, ROOT / "benchmarks" / "loader.png")
    told, held = bounds(sizes)
    print(f"\n{told}")
    return 0 if held else 1


def rates_table(size: Size) -> str:
    """One row a loader, one column a setting."""
    settings = [(shuffle, workers) for shuffle in (True, False) for workers in (0, 1, 2)]
    names = [f"{'shuffled' if shuffle else 'in order'}, {n}" for shuffle, n in settings]
    head = ("", *names, "krows/s", "first ms", "again ms", "peak MiB", "dtype")
    rows = []
    for line in size.lines:
        cells = [line.rates.get(setting) for setting in settings]
        first = list(line.first_ms.values())
        rows.append(
            (
                line.name,
                *(f"{rate / 1e6:,.0f}" if rate else "" for rate in cells),
                f"{line.shuffled / size.seq_length / 1e3:,.1f}",
                f"{first[0]:,.0f}",
                f"{first[-1]:,.0f}",
                f"{line.rss_mib:,.0f}",
                line.yields,
            )
        )
    return table(head, rows)


def ratios_table(sizes: Sequence[Size]) -> str:
    """Medians of the ratios of turns: one row a preset and setting."""
    head = ("S", "preset", "order", "workers", *(LABELS[name] for name in TURNS[1:]))
    rows = []
    for size in sizes:
        for turns in size.turns:
            for setting in turns.rates:
                ratios = (f"{turns.ratio(setting, name):.2f}" for name in TURNS[1:])
                rows.append((size.seq_length, turns.preset, *named(setting), *ratios))
    return table(head, rows)


def bounds(sizes: Sequence[Size]) -> tuple[str, bool]:
    """(what was asked and what was found, whether all bounds are held)."""
    told = [to_minddataset(sizes, name, least) for name, least in LEAST.items()]
    told.append(to_stored_training_columns(sizes))
    told += [to_peer(size, duel) for size in sizes for duel in size.duels]
    return "\n\n".join(text for text, _ in told), all(held for _, held in told)


def to_minddataset(sizes: Sequence[Size], name: str, least: float) -> tuple[str, bool]:
    """A variant of ours against MindDataset: for each size and preset, the median over settings."""
    ratios = {
        f"{size.seq_length} {turns.preset}": statistics.median(
            turns.ratio(setting, name) for setting in turns.rates
        )
        for size in sizes
        for turns in size.turns
    }
    broken = [f"{where}: {ratio:.2f}" for where, ratio in ratios.items() if ratio < least]
    text = (
        f"{LABELS[name]} / MindDataset: median {statistics.median(ratios.values()):.2f}, least "
        f"{min(ratios.values()):.2f}"
    )
    if not least:
        return text, True
    return f"{text} (to reach: {least}) " + (
        f"BROKEN at {'; '.join(broken)}" if broken else "held"
    ), not broken


def to_stored_training_columns(sizes: Sequence[Size]) -> tuple[str, bool]:
    """Our loader on each preset against MindDataset of the one that stores the same arrays.

    For the others, the rates come from two processes, one after the other.
    """
    ratios = {}
    for size in sizes:
        raw = {s: rates["raw"] for s, rates in size.turns[0].rates.items()}
        for turns in size.turns:
            ratios[f"{size.seq_length} {turns.preset}"] = statistics.median(
                statistics.median(rates["loader"]) / statistics.median(raw[setting])
                for setting, rates in turns.rates.items()
            )
    told = ", ".join(f"{where} {ratio:.2f}" for where, ratio in ratios.items())
    broken = [where for where, ratio in ratios.items() if ratio < LEAST_READY]
    text = (
        f"{LABELS['loader']} / MindDataset ({sizes[0].turns[0].preset}): {told} (to reach: "
        f"{LEAST_READY}) "
    )
    return text + (f"BROKEN at {'; '.join(broken)}" if broken else "held"), not broken


def to_peer(size: Size, duel: Duel) -> tuple[str, bool]:
    """The direct reader against one of the fastest peers."""
    ours, theirs = (statistics.median(rates) / 1e6 for rates in zip(*duel.rates))
    text = (
        f"S = {size.seq_length}, shuffled: mindprep, direct {ours:,.0f} Mtok/s, {duel.peer} "
        f"{theirs:,.0f}: {duel.ratio:.2f} x (to reach: more than 1) "
    )
    return text + ("held" if duel.ratio > 1 else "BROKEN"), duel.ratio > 1


def named(setting: Setting) -> tuple[str, int]:
    """For people."""
    return "shuffled" if setting[0] else "in order", setting[1]


if __name__ == "__main__":
    sys.exit(main())
