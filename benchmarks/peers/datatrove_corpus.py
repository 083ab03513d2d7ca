"""The peer of `build_corpus`: JSONL in, token ids out, as datatrove's users do it.

Run by the peer's own interpreter (see README.md), never by the project's:

    PEER benchmarks/peers/datatrove_corpus.py --inputs A.jsonl B.jsonl --tokenizer tokenizer.json \\
        --work DIR --workers 2

    inputs ─clean→ cleaned/ ─signatures→ signatures/ ─dedup→ unique/ ─tokenize→ tokens/

Standard output is one line, a JSON object with the seconds of each stage. A stage's seconds are
the wall time of its executors, with the start of their worker processes, which a user waits for
too. datatrove's own log goes to DIR/datatrove.log.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when datatrove is imported: nothing here needs the hub

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.stats import PipelineStats

MINHASH = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
RULES = (
    "gopher_repetition, gopher_quality, c4_quality, fineweb_quality with their defaults; "
    "minhash 14x8 on word 5-grams (64-bit xxhash); English words by spacy.blank"
)


def main() -> None:
    """Runs the four stages and prints the result as one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--inputs", type=Path, nargs="+", required=True, help="JSONL, key 'text'")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--work", type=Path, required=True, help="an empty or new folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--eos", default="<|endoftext|>", help="token after each document")
    args = parser.parse_args()
    for path in (*args.inputs, args.tokenizer):
        # A tokenizer that is no file would be looked up on the hub.
        if not path.is_file():
            parser.error(f"{path} is not a file")
    args.work.mkdir(parents=True, exist_ok=True)
    if any(args.work.iterdir()):
        parser.error(f"{args.work} is not empty: datatrove would skip the tasks done there before")

    with stderr_to(args.work / "datatrove.log"):
        result = build(args.inputs, args.tokenizer, args.eos, args.work, args.workers)
    print(json.dumps(result))


def build(inputs: list[Path], tokenizer: Path, eos: str, work: Path, workers: int) -> dict:
    """The four stages, one after the other; one task an input file, datatrove's unit of work."""
    tasks = len(inputs)
    cleaned, signatures, unique = (str(work / n) for n in ("cleaned", "signatures", "unique"))
    pairs, removals = str(work / "pairs"), str(work / "removals")
    seconds = dict.fromkeys(("clean", "signatures", "dedup", "tokenize"), 0.0)

    def run(name: str, tasks: int, *steps: PipelineStep) -> PipelineStats:
        start = time.perf_counter()
        logs = str(work / "logs" / name)
        stats = LocalPipelineExecutor(list(steps), tasks, workers, logging_dir=logs).run()
        seconds[name.partition("/")[0]] += time.perf_counter() - start
        return stats

    clean = run(
        "clean",
        tasks,
        input_reader(inputs, work),
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(),
        FineWebQualityFilter(),
        writer(cleaned),
    )
    if not list(Path(cleaned).glob("*.jsonl")):
        raise SystemExit("the rules removed every document; nothing is left to time")
    run(
        "signatures",
        tasks,
        JsonlReader(cleaned),
        MinhashDedupSignature(signatures, config=MINHASH),
    )
    run(
        "dedup/buckets",
        MINHASH.num_buckets,
        MinhashDedupBuckets(signatures, pairs, config=MINHASH),
    )
    run("dedup/cluster", 1, MinhashDedupCluster(pairs, removals, config=MINHASH))
    dedup = run(
        "dedup/filter",
        tasks,
        JsonlReader(cleaned),
        MinhashDedupFilter(removals),
        writer(unique),
    )
    tokens = run(
        "tokenize",
        tasks,
        JsonlReader(unique),
        DocumentTokenizer(str(work / "tokens"), str(tokenizer), eos_token=eos, seed=17),
    )
    return {
        "tool": "datatrove",
        "version": importlib.metadata.version("datatrove"),
        "seconds": {stage: round(s, 3) for stage, s in seconds.items()},
        "total": round(sum(seconds.values()), 3),
        "documents_in": total(clean, 0, "documents"),
        "documents_out": total(dedup, 1, "forwarded"),
        "tokens": total(tokens, 1, "tokens"),
        "rules": RULES,
    }


def input_reader(inputs: list[Path], work: Path) -> JsonlReader:
    """Reads files from any folders: task i takes line i of a list, relative to their common one."""
    paths = [p.resolve() for p in inputs]
    folder = os.path.commonpath([p.parent for p in paths])
    listing = work / "inputs.txt"
    listing.write_text("".join(f"{os.path.relpath(p, folder)}\n" for p in paths))
    return JsonlReader(folder, paths_file=str(listing))


def writer(folder: str) -> JsonlWriter:
    """Writes plain JSONL, in the peer's favour: its default, gzip, costs time."""
    return JsonlWriter(folder, output_filename="${rank}.jsonl", compression=None)


def total(stats: PipelineStats, step: int, label: str) -> int:
    """One counter of one step, summed over the tasks."""
    return int(stats.stats[step][label].total)


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Sends file descriptor 2, the workers' too, to `log`; a failure is told on the real one."""
    real = os.dup(2)
    with log.open("w") as f:
        os.dup2(f.fileno(), 2)
    try:
        yield
    except Exception as e:
        os.write(real, f"datatrove failed: {e!r}; see {log}\n".encode())
        raise SystemExit(1) from e
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)


if __name__ == "__main__":
    main()
