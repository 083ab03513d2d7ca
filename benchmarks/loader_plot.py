"""The loaders' rates as a chart: benchmarks/loader.png."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.loader_run import LABELS, Line, Size

OURS, MINDSPORE, PEER, LIMIT = "#1f6fb4", "#d1495b", "#8d99ae", "#cfcfcf"


def draw(sizes: Sequence[Size], path: Path) -> None:
    """One panel an S: shuffled tokens a second, each loader at its best number of workers."""
    figure, axes = plt.subplots(
        1, len(sizes), figsize=(4 + 3.2 * len(sizes), 8.5), sharey=True, squeeze=False
    )
    names = [line.name for line in sorted(sizes[-1].lines, key=lambda line: line.shuffled)]
    every = [line.shuffled / 1e6 for size in sizes for line in size.lines]
    least, most = min(every), max(every)
    for axis, size in zip(axes[0], sizes, strict=True):
        lines = {line.name: line for line in size.lines}
        rates = [lines[name].shuffled / 1e6 for name in names]
        colours = [colour(lines[name]) for name in names]
        bars = axis.barh(names, rates, color=colours)
        axis.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=2, fontsize=8)
        axis.set_xscale("log")
        axis.set_xlim(least / 2, most * 5)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_title(f"S = {size.seq_length}")
        axis.set_xlabel("million tokens a second")
        axis.tick_params(axis="y", labelsize=9, length=0)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    kinds = (("mindprep", OURS), ("MindSpore", MINDSPORE), ("peers", PEER), ("limits", LIMIT))
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for _, c in kinds]
    names = [name for name, _ in kinds]
    figure.legend(handles, names, loc="lower center", ncols=4, frameon=False)
    figure.suptitle(
        "Shuffled batches of 8 rows of S tokens\npage cache warm, 0 to 2 workers: the best"
    )
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def colour(line: Line) -> str:
    """Ours, MindSpore's, a peer's, or no loader at all."""
    if line.peer:
        return PEER
    if line.name in (LABELS["gather"], LABELS["memcpy"]):
        return LIMIT
    return MINDSPORE if line.name.startswith(LABELS["raw"]) else OURS
