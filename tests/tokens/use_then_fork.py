"""Encodes here, then in two workers started by METHOD; exit 0 if all ids are the same.

    python -m tests.tokens.use_then_fork METHOD TOKENIZER

A program of its own: a test process holds threads of other libraries (MindSpore, Ray), with which
no fork is safe.
"""

import multiprocessing
import sys

from dataprep.tokens import load

TEXTS = [f"Text {i} of 长江 and some more words, {i * 7919}." for i in range(2000)]


def encode(path: str) -> list[list[int]]:
    """Ids of all texts."""
    return load(path).encoder.encode(TEXTS)


def main() -> int:
    """Compares; a thread pool inherited locked would hang here."""
    method, path = sys.argv[1:]
    here = encode(path)
    with multiprocessing.get_context(method).Pool(2) as pool:
        jobs = [pool.apply_async(encode, (path,)) for _ in range(2)]
        return int(not all(job.get(timeout=60) == here for job in jobs))


if __name__ == "__main__":
    sys.exit(main())
