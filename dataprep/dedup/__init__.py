"""Exact and near-duplicate removal: pure functions over arrays, in the order of their use.

text ─ shingle ─ signatures ─ band_keys ─ buckets ┐
  └─ text_hashes ─ first_of_equal                 ├─ resolve ─ who stays
                   unique_sorted, jaccard ────────┘
"""

from dataprep.dedup.bands import band_keys, buckets, choose_bands
from dataprep.dedup.exact import first_of_equal, text_hashes
from dataprep.dedup.jaccard import jaccard, unique_sorted
from dataprep.dedup.minhash import permutations, signatures
from dataprep.dedup.resolve import MAX_KEPT, Resolution, resolve
from dataprep.dedup.shingles import shingle

__all__ = [
    "MAX_KEPT",
    "Resolution",
    "band_keys",
    "buckets",
    "choose_bands",
    "first_of_equal",
    "jaccard",
    "permutations",
    "resolve",
    "shingle",
    "signatures",
    "text_hashes",
    "unique_sorted",
]
