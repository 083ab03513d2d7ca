"""Between the passes: which documents stay, and on which side.

    hashes  -> the earliest of equal texts stays                         (exact)
    keys    -> buckets -> pairs -> exact Jaccard -> keep the earliest    (minhash)
    weights -> a seeded share of a source is left out, or documents repeated      (mix)
    who stays -> whole clusters to train or eval -> shard and place by a seeded hash

The hash of a document, taken as a point on a circle that the train shards divide among them, is its
place. The n copies of a repeated document stand at n equal distances around the circle, and so in
different shards, or far apart in one.

One file of decisions for each task of pass A; its documents in the same order.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep import dedup
from dataprep.batch import text_buffers
from dataprep.corpus import pass_a
from dataprep.corpus.arrow import read_array, unreadable, write_arrow
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.exchange import cuts
from dataprep.corpus.plan import Identity, Ints, Plan
from dataprep.dedup.config import Dedup
from dataprep.engine import Task
from dataprep.files import fingerprint
from dataprep.ledger import Ledger
from dataprep.storage import Place, fetched

TRAIN, EVAL, EXACT, NEAR, THINNED = 0, 1, 2, 3, 4
RULES = {EXACT: ("dedup", "exact"), NEAR: ("dedup", "minhash"), THINNED: ("mix", "weight")}
EVAL_SHARDS = 1
AT_ONCE = 1 << 20  # places made at a time
CACHE_BYTES = 64 << 20  # shingle sets held for comparison

DECISIONS = pa.schema(
    [
        ("fate", pa.uint8()),
        ("order", pa.uint64()),  # place among all documents of its side
        ("copies", pa.int32()),  # times it is placed; 0: removed
        ("weight", pa.float64()),  # the largest of its file's and of its duplicates' files
        ("duplicate_of", pa.int64()),  # number of the kept document in the run; -1
        ("similarity", pa.float64()),
    ]
)


def mix(seed: int, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """uint64[n]: a seeded hash of two integers (finalizer of SplitMix64, Steele et al. 2014)."""
    x = np.full(len(a), seed, np.uint64)
    for part in (a, b):
        x = x * np.uint64(0x9E3779B97F4A7C15) + part.astype(np.uint64)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x


@dataclass(frozen=True)
class Decide:
    """Work of the global step; one process, memory in proportion to the number of documents."""

    folders: list[Place]
    """Of the tasks of pass A."""
    sources: list[str]
    """Of each of those tasks."""
    identity: Identity
    weights: list[float]
    """Of each file."""
    dedup: Dedup
    eval_fraction: float
    shards: int
    seed: int

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        counts, files, rows = document_ids(self.folders, self.identity)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        fate, duplicate_of, similarity, cluster, warnings = self._duplicates(starts)
        weight = self._weights(files, duplicate_of)
        copies = self._mix(fate, weight, files, rows)
        self._hold_out(fate, cluster, files, rows)
        copies[fate == EVAL] = 1
        order = mix(self.seed, files, rows)
        train = fate == TRAIN
        places = Places(order[train], copies[train])
        shards = int(min(self.shards, max(1, places.total)))
        ledger = Ledger()
        paths, digests = [], []
        columns = (fate, order, copies, weight, duplicate_of, similarity)
        for i, source in enumerate(self.sources):
            part = slice(starts[i], starts[i + 1])
            arrays = [pa.array(column[part]) for column in columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=DECISIONS)
            paths.append(write_arrow(folder / f"{i:05d}.arrow", DECISIONS, [batch]))
            digests.append(_digest(batch))
            for value, (stage, rule) in RULES.items():
                n = int(np.count_nonzero(fate[part] == value))
                ledger.count(source, f"documents.removed.{stage}.{rule}", n)
        result = {
            "ledger": ledger.to_json(),
            "shards": shards,
            "borders": [int(b) for b in places.borders(shards)],
            "eval_shards": EVAL_SHARDS if (fate == EVAL).any() else 0,
            "sha256": digests,
            "starts": [int(s) for s in starts],
            "warnings": warnings,
        }
        return result, paths

    def _duplicates(
        self, starts: Ints
    ) -> tuple[npt.NDArray[np.uint8], Ints, npt.NDArray[np.float64], Ints, list[str]]:
        """(fate, duplicate_of, similarity, cluster) of all documents, and warnings."""
        n = int(starts[-1])
        fate = np.full(n, TRAIN, np.uint8)
        duplicate_of = np.full(n, -1, np.int64)
        similarity = np.full(n, np.nan)
        cluster = np.arange(n)
        if self.dedup.method == "none" or n == 0:
            return fate, duplicate_of, similarity, cluster, []
        hashes = [read_array(f / pass_a.HASHES) for f in self.folders]
        first = dedup.first_of_equal(np.concatenate(hashes))
        copies = first != np.arange(n)
        warnings = []
        if self.dedup.method == "minhash":
            groups = self._buckets(starts, ~copies)
            with _ShingleStore(self.folders, starts, self.dedup.ngram) as store:
                found = dedup.resolve(n, groups, store.similarity, self.dedup.threshold)
            near = found.duplicate_of >= 0
            fate[near] = NEAR
            duplicate_of, similarity = found.duplicate_of.copy(), found.similarity.copy()
            cluster = found.cluster
            if found.capped:
                warnings.append(
                    f"{found.capped:,} documents look like so many others that they were compared "
                    f"with the earliest {dedup.MAX_KEPT} of a bucket only"
                )
        # A copy follows its first: what stays is named, at its similarity.
        fate[copies] = EXACT
        kept = duplicate_of[first[copies]]
        duplicate_of[copies] = np.where(kept < 0, first[copies], kept)
        similarity[copies] = np.where(kept < 0, 1, similarity[first[copies]])
        return fate, duplicate_of, similarity, cluster[first], warnings

    def _buckets(
        self, starts: Ints, candidates: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[Ints, Ints]]:
        """Buckets with more than one document, one band at a time."""
        shingled = [read_array(f / pass_a.SHINGLED) for f in self.folders]
        documents = np.flatnonzero(candidates & np.concatenate(shingled))
        bands, _ = self.dedup.bands()
        for band in range(bands):
            # One file open at a time: there may be thousands.
            keys = np.concatenate([read_array(f / pass_a.KEYS, band) for f in self.folders])
            yield dedup.buckets(keys[documents], documents)

    def _weights(self, files: Ints, duplicate_of: Ints) -> npt.NDArray[np.float64]:
        """float64[n]: of each document its file's weight, or a larger one of its duplicates' files.

        So a text that several sources hold has the largest of their weights, whichever comes first.
        """
        weight = np.array(self.weights)[files]
        gone = np.flatnonzero(duplicate_of >= 0)
        np.maximum.at(weight, duplicate_of[gone], weight[gone])
        return weight

    def _mix(
        self, fate: npt.NDArray[np.uint8], weight: npt.NDArray[np.float64], files: Ints, rows: Ints
    ) -> npt.NDArray[np.int32]:
        """int32[n]: how often each document is placed; those of weight below 1 may become THINNED.

        Weight 2.3 means twice, and a third time for a seeded 0.3 of the documents.
        """
        whole = np.floor(weight)
        draw = mix(self.seed + 2, files, rows).astype(np.float64) / 2.0**64
        copies = (whole + (draw < weight - whole)).astype(np.int32)
        fate[(fate == TRAIN) & (copies == 0)] = THINNED
        copies[fate != TRAIN] = 0
        return copies

    def _hold_out(
        self, fate: npt.NDArray[np.uint8], cluster: Ints, files: Ints, rows: Ints
    ) -> None:
        """Moves the clusters with the lowest hashes to EVAL, until the fraction is met."""
        stays = np.flatnonzero(fate == TRAIN)
        roots, size = np.unique(cluster[stays], return_counts=True)
        want = round(self.eval_fraction * len(stays))
        if want == 0 or len(roots) < 2:
            return
        by_hash = np.argsort(mix(self.seed + 1, files[roots], rows[roots]), kind="stable")
        before = np.cumsum(size[by_hash]) - size[by_hash]
        chosen = roots[by_hash[before < want][: len(roots) - 1]]
        fate[stays[np.isin(cluster[stays], chosen)]] = EVAL


def _digest(batch: pa.RecordBatch) -> str:
    """SHA-256 of the decisions: what pass B depends on."""
    sink = hashlib.sha256()
    for column in batch.columns:
        sink.update(np.asarray(column).tobytes())
    return sink.hexdigest()


def repeat(
    order: npt.NDArray[np.uint64], copies: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.uint64], Ints]:
    """(place of each copy uint64[m], its document int64[m]): copies at equal distances."""
    document = np.repeat(np.arange(len(order)), copies)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(copies) - copies, copies)
    step = np.uint64(2**64 - 1) // np.maximum(copies, 1).astype(np.uint64)
    return order[document] + nth.astype(np.uint64) * step[document], document


@dataclass(frozen=True)
class Places:
    """Places of documents with all their copies, of which only some are made at a time."""

    order: npt.NDArray[np.uint64]
    copies: npt.NDArray[np.int32]

    @property
    def total(self) -> int:
        """Number of places."""
        return int(self.copies.sum(dtype=np.int64))

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.uint64], Ints]]:
        """(place uint64[m], its document int64[m]) of some documents at a time."""
        for first, stop in cuts(self.copies.astype(np.int64), AT_ONCE):
            place, document = repeat(self.order[first:stop], self.copies[first:stop])
            yield place, first + document

    def borders(self, shards: int) -> npt.NDArray[np.uint64]:
        """uint64[shards - 1]: first place of each shard but the first; no shard is left empty.

        Equal parts of the circle, so that a document's shard does not depend on the others. Where
        that leaves a shard empty (few documents), parts with equal numbers of documents.
        """
        part = np.uint64(2**64 // shards if shards > 1 else 2**64 - 1)
        equal = np.arange(1, shards, dtype=np.uint64) * part
        used = np.zeros(shards, bool)
        for place, _ in self:
            used[np.searchsorted(equal, place, "right")] = True
        if used.all() or not self.total:
            return equal
        places = np.sort(np.concatenate([place for place, _ in self]))
        return places[np.arange(1, shards) * len(places) // shards]


def document_ids(folders: Sequence[Place], identity: Identity) -> tuple[list[int], Ints, Ints]:
    """(documents of each folder of pass A, file int64[n] and row int64[n] of all of them)."""
    ids = [read_array(folder / pass_a.IDS) for folder in folders]
    split, row = np.concatenate([np.zeros((2, 0), np.int64), *ids], axis=1)
    return [part.shape[1] for part in ids], *identity(split, row)


class _ShingleStore(ExitStack):
    """Shingle sets of any document, made from its cleaned text when asked for.

    Only where each text stands is held (16 bytes a document); a map of the files would let the
    whole corpus become resident. Remote files are fetched, each when one of its texts is first
    asked for: any order may come, and a request for each text would take days.
    """

    def __init__(self, folders: Sequence[Place], starts: Ints, ngram: int) -> None:
        super().__init__()
        self._ngram, self._starts = ngram, starts
        self._cleaned = [folder / pass_a.CLEANED for folder in folders]
        self._files: dict[int, tuple[Path, Ints, Ints]] = {}
        self._sets: OrderedDict[int, npt.NDArray[np.uint64]] = OrderedDict()
        self._held = 0  # bytes of all sets

    def _file(self, number: int) -> tuple[Path, Ints, Ints]:
        """(local file, position and size of each text in it)."""
        if number not in self._files:
            (path,) = self.enter_context(fetched([self._cleaned[number]]))
            self._files[number] = path, *text_places(path)
        return self._files[number]

    def _set(self, document: int) -> npt.NDArray[np.uint64]:
        if document in self._sets:
            self._sets.move_to_end(document)
            return self._sets[document]
        number = int(np.searchsorted(self._starts, document, "right")) - 1
        path, at, size = self._file(number)
        nth = document - int(self._starts[number])
        with path.open("rb") as f:
            f.seek(int(at[nth]))
            data = np.frombuffer(f.read(int(size[nth])), np.uint8)
        shingles, _ = dedup.shingle(data, np.array([0, len(data)]), self._ngram)
        made = dedup.unique_sorted(shingles)
        self._sets[document] = made
        self._held += made.nbytes
        while self._held > CACHE_BYTES and len(self._sets) > 2:  # two: those being compared
            self._held -= self._sets.popitem(last=False)[1].nbytes
        return made

    def similarity(self, a: int, b: int) -> float:
        """Exact Jaccard similarity of two documents' shingle sets."""
        return dedup.jaccard(self._set(a), self._set(b))


def text_places(path: Path) -> tuple[Ints, Ints]:
    """(position in the file int64[d], bytes int64[d]) of each text of a cleaned.arrow.

    The file is uncompressed, so that a text's bytes stand in it as they are.
    Raises UserError when it is damaged.
    """
    at, size = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            base = source.read_buffer().address
            for i in range(reader.num_record_batches):
                data, offsets = text_buffers(reader.get_batch(i).column("text"))
                at.append(data.ctypes.data - base + offsets[:-1])
                size.append(np.diff(offsets))
                del data, offsets  # views into the map, which is closed below
    except (OSError, pa.ArrowException) as e:
        raise unreadable(path, e) from e
    return np.concatenate(at), np.concatenate(size)


def task(config: BuildConfig, plan: Plan, done: Sequence[Task], records: Sequence[int]) -> Task:
    """The one task of this step. `done`: the tasks of pass A; `records`: of each split."""
    identity = Identity(plan.file_of_split(), plan.row_bases(records))
    return Task(
        name="decide which documents stay",
        folder=config.work / "decide",
        depends_on={
            "pass A": fingerprint([t.fingerprint for t in done]),
            "dedup": asdict(config.dedup),
            "eval": asdict(config.eval),
            "write": {"shards": config.write.shards},
            "weights": {file.path: file.weight for file in plan.files if file.weight != 1},
            "seed": config.seed,
        },
        work=Decide(
            folders=[t.folder for t in done],
            sources=[plan.splits[group[0]].file.source for group in plan.groups],
            identity=identity,
            weights=[file.weight for file in plan.files],
            dedup=config.dedup,
            eval_fraction=config.eval.fraction,
            shards=config.write.shards,
            seed=config.seed,
        ),
    )
