"""From buckets to decisions: which documents go, which kept one each of them repeats.

Taking the connected components of all similar pairs would remove too much: in a chain A~B~C it
removes C, though A and C differ. Here documents are taken in ascending order and compared with the
*kept* earlier ones only, so that every removed document has a kept one at or above the threshold:

    0 A       kept
    1 B ~ A   removed, duplicate of 0
    2 C ~ B   kept: B is gone, and A and C differ

All three are one cluster nevertheless, for an eval split that must not tear it: a document is also
compared with the removed ones of its buckets, unless they are in its cluster already. For
near-copies they are, so that this costs nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.dedup.hashing import I64

Ids = npt.NDArray[np.int32] | I64

MAX_KEPT = 256
"""Kept documents of one bucket that a later member is compared with: the earliest ones. (And as
many removed ones.)

Kept documents of a bucket are below the threshold of each other, so a bucket of near-copies has one
and m members cost m-1 comparisons. Only a large family of texts that are alike but not alike enough
(pages of one template) has many, and would cost m*m/2. The cap bounds the whole by
members of all buckets * MAX_KEPT; `Resolution.capped` counts the documents it touched.
"""


@dataclass(frozen=True)
class Resolution:
    """What becomes of each document; every array has one entry a document."""

    duplicate_of: I64
    """int64[d]: the earliest kept document that it was found to repeat, -1 if it stays."""
    similarity: npt.NDArray[np.float64]
    """float64[d]: similarity to that document, nan if it stays."""
    cluster: I64
    """int64[d]: smallest document of those linked to it, directly or through others, kept or
    removed, by a comparison at or above the threshold; itself if there is none."""
    capped: int = 0
    """Documents that met more than MAX_KEPT kept ones in a bucket: not compared with all."""


@dataclass(frozen=True)
class _Index:
    """Documents and buckets, each as a list of the other; documents by their rank in `docs`.

    Built from all bands at once, about 30 bytes a bucket member while it is built and 20 after.
    """

    docs: I64  # the documents that are in any bucket, ascending
    doc_starts: I64  # the buckets of docs[r] are doc_buckets[doc_starts[r]:doc_starts[r+1]]
    doc_buckets: Ids
    starts: I64  # the room of bucket b is seen[starts[b]:starts[b+1]]; it fills with ranks,
    seen: I64
    counts: I64  # of kept members from its front,
    gone: I64  # of removed members from its back


def resolve(
    n_docs: int,
    groups: Iterable[tuple[I64, I64]],
    similarity: Callable[[int, int], float],
    threshold: float,
) -> Resolution:
    """Keeps the earliest of similar documents.

    groups: (members, starts) of each band, as from `bands.buckets`. similarity(document, kept) is
    exact, and called once for a pair at most, documents ascending; so a caller does well to hold
    the last document's shingles. A document is removed when any value for a kept one is at or above
    the threshold.

    Time and memory, but for the three results, are in proportion to the members of buckets.
    """
    duplicate_of = np.full(n_docs, -1, np.int64)
    values = np.full(n_docs, np.nan)
    parents = np.arange(n_docs, dtype=np.int64)
    index = _build(groups)
    arrays = (
        index.doc_starts,
        index.doc_buckets,
        index.starts,
        index.seen,
        index.counts,
        index.gone,
    )
    total = len(index.docs)
    stamps = np.full(total, -1, np.int64)
    found = np.empty(total, np.int64)
    rank = capped = 0
    while True:
        rank, count, skipped = _next_with_company(rank, *arrays, MAX_KEPT, stamps, found)
        if rank == total:
            break
        capped += skipped
        doc = int(index.docs[rank])
        for kept in index.docs[np.sort(found[:count])].tolist():
            value = similarity(doc, kept)
            if value >= threshold:
                _union(parents, kept, doc)
                if duplicate_of[doc] < 0:
                    duplicate_of[doc], values[doc] = kept, value
        count = _gone_elsewhere(rank, *arrays, MAX_KEPT, index.docs, parents, stamps, found)
        for gone in index.docs[np.sort(found[:count])].tolist():
            if _find(parents, gone) != _find(parents, doc) and similarity(doc, gone) >= threshold:
                _union(parents, gone, doc)
        _place(rank, duplicate_of[doc] < 0, *arrays)
        rank += 1
    _flatten(parents, index.docs)
    return Resolution(duplicate_of, values, parents, capped)


def _build(groups: Iterable[tuple[I64, I64]]) -> _Index:
    """One index of the buckets of all bands."""
    bands = list(groups)
    members = np.concatenate([m for m, _ in bands] or [np.zeros(0, np.int64)])
    sizes = np.concatenate([np.diff(s) for _, s in bands] or [np.zeros(0, np.int64)])
    del bands
    ids: Ids = np.arange(len(sizes), dtype=np.int64)
    if len(ids) < 1 << 31:
        ids = ids.astype(np.int32)
    bucket = ids.repeat(sizes)
    order = np.argsort(members, kind="stable")
    bucket = bucket[order]
    members = members[order]
    del order
    doc_starts = np.flatnonzero(np.append(True, members[1:] != members[:-1])[: len(members)])
    return _Index(
        docs=members[doc_starts],
        doc_starts=np.append(doc_starts, len(members)),
        doc_buckets=bucket,
        starts=np.append(0, np.cumsum(sizes)),
        seen=members,  # its room is reused: a bucket never sees more than its members
        counts=np.zeros(len(sizes), np.int64),
        gone=np.zeros(len(sizes), np.int64),
    )


@njit(nogil=True, cache=True)
def _next_with_company(
    rank: int,
    doc_starts: I64,
    doc_buckets: Ids,
    starts: I64,
    seen: I64,
    counts: I64,
    gone: I64,
    max_kept: int,
    stamps: I64,
    found: I64,
) -> tuple[int, int, bool]:
    """Keeps the documents from `rank` on that meet no earlier one, up to the first that does.

    Returns its rank (the number of documents, if there is none), the number of kept ones it meets,
    which stand in `found` unsorted, and whether max_kept cut them short.
    """
    total = doc_starts.shape[0] - 1
    while rank < total:
        count = 0
        cut = False
        alone = True
        for i in range(doc_starts[rank], doc_starts[rank + 1]):
            bucket = doc_buckets[i]
            first = starts[bucket]
            cut |= counts[bucket] > max_kept
            alone &= counts[bucket] + gone[bucket] == 0
            for j in range(first, first + min(counts[bucket], max_kept)):
                if stamps[seen[j]] != rank:
                    stamps[seen[j]] = rank
                    found[count] = seen[j]
                    count += 1
        if not alone:
            return rank, count, cut
        _place(rank, True, doc_starts, doc_buckets, starts, seen, counts, gone)
        rank += 1
    return rank, 0, False


@njit(nogil=True, cache=True)
def _gone_elsewhere(
    rank: int,
    doc_starts: I64,
    doc_buckets: Ids,
    starts: I64,
    seen: I64,
    counts: I64,
    gone: I64,
    max_gone: int,
    docs: I64,
    parents: I64,
    stamps: I64,
    found: I64,
) -> int:
    """Number of removed documents that `rank` meets and that are in another cluster than it.

    They stand in `found`, unsorted.
    """
    count = 0
    root = _find(parents, docs[rank])
    for i in range(doc_starts[rank], doc_starts[rank + 1]):
        bucket = doc_buckets[i]
        last = starts[bucket + 1] - 1
        for j in range(last, last - min(gone[bucket], max_gone), -1):
            if stamps[seen[j]] != rank:
                stamps[seen[j]] = rank
                if _find(parents, docs[seen[j]]) != root:
                    found[count] = seen[j]
                    count += 1
    return count


@njit(nogil=True, cache=True)
def _place(
    rank: int,
    stays: bool,
    doc_starts: I64,
    doc_buckets: Ids,
    starts: I64,
    seen: I64,
    counts: I64,
    gone: I64,
) -> None:
    """Makes a document known to the later members of its buckets, as kept or as removed."""
    for i in range(doc_starts[rank], doc_starts[rank + 1]):
        bucket = doc_buckets[i]
        if stays:
            seen[starts[bucket] + counts[bucket]] = rank
            counts[bucket] += 1
        else:
            gone[bucket] += 1
            seen[starts[bucket + 1] - gone[bucket]] = rank


@njit(nogil=True, cache=True)
def _find(parents: I64, x: int) -> int:
    """Root of x, with path halving (Tarjan, van Leeuwen 1984)."""
    while parents[x] != x:
        parents[x] = parents[parents[x]]
        x = parents[x]
    return x


@njit(nogil=True, cache=True)
def _union(parents: I64, x: int, y: int) -> None:
    """Joins two clusters under the smaller root."""
    x, y = _find(parents, x), _find(parents, y)
    parents[max(x, y)] = min(x, y)


@njit(nogil=True, cache=True)
def _flatten(parents: I64, docs: I64) -> None:
    """Points the given documents, ascending, to their roots: a parent is never the larger one."""
    for doc in docs:
        parents[doc] = parents[parents[doc]]
