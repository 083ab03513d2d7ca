"""Exact duplicates: documents whose bytes are the same."""

import hashlib

import numpy as np

from dataprep.batch import Bytes, Offsets
from dataprep.dedup.bands import buckets
from dataprep.dedup.hashing import I64, U64

HASH_BYTES = 16


def text_hashes(data: Bytes, offsets: Offsets) -> U64:
    """uint64[d, 2]: the first 16 bytes of BLAKE2b (RFC 7693) of each document, little-endian.

    A cryptographic hash, because a removal rests on it alone: nobody can make a page whose hash is
    that of another one.
    """
    view = np.ascontiguousarray(data).data
    bounds = offsets.tolist()
    digests = b"".join(
        hashlib.blake2b(view[start:stop]).digest()[:HASH_BYTES]
        for start, stop in zip(bounds[:-1], bounds[1:])
    )
    return np.frombuffer(digests, "<u8").reshape(-1, 2).astype(np.uint64)


def first_of_equal(hashes: U64) -> I64:
    """int64[d]: the index of the earliest document with the same hash; its own, if it is the first.

    hashes uint64[d, 2].
    """
    first = np.arange(len(hashes), dtype=np.int64)
    # Half a hash leaves only the repeated documents, and rarely others: the full sort is of these.
    members, starts = buckets(hashes[:, 0], first)
    low, high = hashes[members, 0], hashes[members, 1]
    order = np.lexsort((members, high, low))
    members, low, high = members[order], low[order], high[order]
    opens = np.ones(len(members), bool)
    opens[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    leaders = members[opens]
    first[members] = leaders[np.cumsum(opens) - 1]
    return first
