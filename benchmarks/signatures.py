"""Text to MinHash signature: ours against datasketch, on the same shingle hashes.

python -m benchmarks.signatures
"""

import json
import sys
import time

import datasketch
import numpy as np
import pyarrow as pa

from benchmarks.common import Skip, machine, median_seconds, real, table
from dataprep import dedup
from dataprep.batch import text_buffers

PERMS = 128
PEER_DOCUMENTS = 50  # datasketch takes about half a millisecond each


def main() -> None:
    """Prints microseconds a document and MB/s; checks that both give the same signatures."""
    lines = real("en/openwebtext_1k.jsonl").read_text(encoding="utf-8").split("\n")
    texts = [json.loads(line)["text"] for line in lines if line]
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    a, b = dedup.permutations(PERMS)
    shingles, starts = dedup.shingle(data, offsets, 5)
    shingling = median_seconds(lambda: dedup.shingle(data, offsets, 5))
    signing = median_seconds(lambda: dedup.signatures(shingles, starts, a, b))
    mine = dedup.signatures(shingles, starts, a, b)

    low = (shingles & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    begin = time.perf_counter()
    for d in range(PEER_DOCUMENTS):
        peer = datasketch.MinHash(PERMS, seed=1, scheme="affine32", hashfunc=int)
        peer.update_batch(low[starts[d] : starts[d + 1]].tolist())
        assert (peer.hashvalues == mine[d]).all(), "signatures differ"
    theirs = (time.perf_counter() - begin) / PEER_DOCUMENTS
    n, size = len(texts), int(offsets[-1] - offsets[0])
    each = signing / n
    rows = [
        ("shingle (5 words)", shingling / n * 1e6, size / 1e6 / shingling, "-", "-"),
        ("signature (128)", each * 1e6, size / 1e6 / signing, theirs * 1e6, theirs / each),
    ]
    print(f"{n} documents of {size / n:.0f} bytes, one core; {machine()}\n")
    print(table(("step", "mindprep us/doc", "MB/s", "datasketch us/doc", "ratio"), rows))


if __name__ == "__main__":
    try:
        main()
    except Skip as e:
        print(f"skipped: {e}")
        sys.exit(0)
