"""From a row to its documents, or from a document to its fate.

python -m pipelines.trace OUT --row 0:3            shard 0, row 3: its documents and their targets
python -m pipelines.trace OUT --doc FILE:ROW       record ROW (0-based) of an input file
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dataprep.errors import UserError, printable
from dataprep.manifest import Manifest, Shard
from dataprep.mindrecord import ShardReader
from dataprep.trace import Piece, document_fate, find_shard, row_pieces, stored_targets
from pipelines.common import output_folder, run


def main(argv: Sequence[str] | None = None) -> int:
    """Prints where a row comes from, or where a document went."""
    parser = argparse.ArgumentParser(
        prog="mindprep trace",
        description="Traces a row to its source documents, or a source record to its fate.",
    )
    parser.add_argument("out", type=output_folder, help="output folder of a build")
    parser.add_argument("--split", default="train", help="split of --row (default: train)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--row", help="SHARD:ROW, both from 0 on")
    what.add_argument("--doc", help="FILE:ROW, the file as in the manifest or its end")
    args = parser.parse_args(argv)
    manifest = Manifest.load(args.out)
    if args.row is not None:
        number, row = _pair("--row", args.row)
        shard = find_shard(manifest, _number("--row", number), args.split)
        pieces = row_pieces(args.out, shard, row)
        for p, targets in zip(pieces, _targets(args.out, manifest, shard, row, pieces)):
            print(
                f"slots {p.start}..{p.start + p.length - 1}: {printable(p.file)}:{p.source_row} "
                f"tokens {p.token_start}..{p.token_start + p.length - 1}, {targets}"
            )
        return 0
    print("\n".join(_fate(args.out, manifest, *_pair("--doc", args.doc))))
    return 0


def _targets(
    out: Path, manifest: Manifest, shard: Shard, row: int, pieces: list[Piece]
) -> list[str]:
    """How many tokens each piece of a row trains, as its columns say."""
    try:
        with ShardReader(out / shard.path) as reader:
            columns = {name: rows[0] for name, rows in reader.read(row, row + 1).items()}
            mask = stored_targets(columns, manifest.seq_length)
    except UserError as e:  # where the row comes from is known all the same
        print(f"note: {e}", file=sys.stderr)
        return ["targets not known"] * len(pieces)
    if mask is None:
        return [f"targets not stored ({manifest.preset})"] * len(pieces)
    counts = (int(mask[p.start : p.start + p.length].sum()) for p in pieces)
    return [f"{n} target{'s' * (n != 1)}" for n in counts]


def _fate(out: Path, manifest: Manifest, file: str, row: int) -> list[str]:
    fate = document_fate(out, manifest, file, row)
    if fate.removed:
        r = fate.removed
        lines = [f"removed by {r['stage']}: {r['rule']}"]
        if r["value"] == r["value"]:  # not NaN: the rule measures something
            lines.append(f"  measured {r['value']:.6g}, threshold {r['threshold']:.6g}")
        if r["duplicate_of"]:
            kept = printable(r["duplicate_of"])
            lines.append(f"  duplicate of {kept} (similarity {r['similarity']:.4f})")
        return lines
    if not fate.pieces:
        return ["no document: a blank line"]
    return [
        f"kept: {p.shard} row {p.row} slots {p.start}..{p.start + p.length - 1} "
        f"(tokens {p.token_start}..{p.token_start + p.length - 1})"
        for p in fate.pieces
    ]


def _pair(flag: str, value: str) -> tuple[str, int]:
    left, _, right = value.rpartition(":")
    if not left:
        raise UserError(f"{flag} is {value!r}; write it as A:B")
    return left, _number(flag, right)


def _number(flag: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 18:
        raise UserError(f"{flag}: {value!r} is not a number from 0 on")
    return int(value)


if __name__ == "__main__":
    sys.exit(run(main))
