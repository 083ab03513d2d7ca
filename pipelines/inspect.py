"""Shows one row: decoded, masked targets dimmed, a border before each document.

python -m pipelines.inspect OUT --shard 0 --row 3
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from dataprep.errors import UserError, printable
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.mindrecord import ShardReader
from dataprep.tokens.tokenizer import Encoder, load
from dataprep.trace import (
    Piece,
    audited_targets,
    check_row,
    find_shard,
    row_pieces,
    stored_targets,
)
from pipelines.common import output_folder, run


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a row."""
    parser = argparse.ArgumentParser(
        prog="mindprep inspect",
        description="Shows one row, decoded, of any column preset. A token is plain when it "
        "predicts the next, dim when its target is masked; a line before each document names its "
        "source.",
    )
    parser.add_argument("out", type=output_folder, help="output folder of a build")
    parser.add_argument("--split", default="train", help="train or eval (default: train)")
    parser.add_argument("--shard", type=int, default=0, help="number of the shard (default: 0)")
    parser.add_argument("--row", type=int, default=0, help="number of the row (default: 0)")
    parser.add_argument("--ids", action="store_true", help="show token ids instead of text")
    args = parser.parse_args(argv)
    manifest = Manifest.load(args.out)
    shard = find_shard(manifest, args.shard, args.split)
    check_row(shard, args.row)
    with ShardReader(args.out / shard.path) as reader:
        row = {name: rows[0] for name, rows in reader.read(args.row, args.row + 1).items()}
    encoder = None if args.ids else _encoder(manifest)
    console = Console(highlight=False, soft_wrap=True)
    pieces = row_pieces(args.out, shard, args.row)
    s, ids = manifest.seq_length, row["input_ids"]
    mask, by = stored_targets(row, s), ""
    if mask is None:
        mask = audited_targets(args.out, shard, pieces, s)
        by = f" by audit/rows: {manifest.preset} stores no mask"
    title = f"{shard.path} row {args.row}: {int(mask.sum())} of {s} slots trained{by}"
    console.print(Text(title, "bold"))
    for piece in pieces:
        console.print(_border(piece))
        window = slice(piece.start, piece.start + piece.length)
        console.print(_content(ids[window], mask[window], encoder))
    used = sum(piece.length for piece in pieces)
    console.print(Text(f"── {s - used} slots of padding", "cyan"))
    if len(ids) > s:
        goes_on = bool(mask[-1])
        what = "the next token of the last document, a target only" if goes_on else "the pad id"
        console.print(Text(f"── slot {s}, beyond the row: {what}", "cyan"))
        console.print(_content(ids[s:], np.array([goes_on]), encoder))
    return 0


def _encoder(manifest: Manifest) -> Encoder:
    if not manifest.tokenizer.path:
        raise UserError("this data was imported without its tokenizer; use --ids to see ids")
    path = Path(manifest.tokenizer.path)
    if not path.is_file() or sha256_file(path) != manifest.tokenizer.sha256:
        raise UserError(
            f"the tokenizer of this data, {path}, is not here or has changed; use --ids to see ids"
        )
    return load(str(path)).encoder


def _border(piece: Piece) -> Text:
    end = piece.start + piece.length
    where = f"slots {piece.start}..{end - 1}, tokens from {piece.token_start}"
    return Text(f"── {printable(piece.file)}:{piece.source_row} ({where})", "cyan")


def _content(
    ids: npt.NDArray[np.int32], mask: npt.NDArray[np.bool_], encoder: Encoder | None
) -> Text:
    """Runs of equally masked tokens; escape sequences of the text are shown, not obeyed."""
    out = Text()
    borders = np.flatnonzero(np.diff(mask)) + 1
    for part, on in zip(np.split(ids, borders), np.split(mask, borders)):
        text = encoder.decode(part.tolist()) if encoder else " ".join(map(str, part)) + " "
        safe = (printable(line) for line in text.replace("\t", "    ").split("\n"))
        out.append("\n".join(safe), "" if on[0] else "dim")
    return out


if __name__ == "__main__":
    sys.exit(run(main))
