"""The peer of `benchmarks.engine`: datatrove reads JSONL and writes it again, nothing else.

    PEER benchmarks/peers/datatrove_engine.py INPUTS WORK WORKERS

Prints {"seconds": s}, the wall time of its executor with the start of its workers.
"""

import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def main() -> None:
    """Runs one pipeline of two steps, a task an input file."""
    inputs, work, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tasks = len(os.listdir(inputs))
    writer = JsonlWriter(f"{work}/out", output_filename="${rank}.jsonl", compression=None)
    start = time.perf_counter()
    LocalPipelineExecutor(
        [JsonlReader(inputs), writer], tasks, workers, logging_dir=f"{work}/logs"
    ).run()
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
