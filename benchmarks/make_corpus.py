"""A made corpus of any size, realistic where it matters for speed, memory and duplicates.

    python -m benchmarks.make_corpus OUT --mb 2000 --files 16 --seed 1

    OUT/part-000.jsonl ...   {"text": "..."} a line; the middle file holds half of the corpus
    OUT/truth.tsv            kind, copy (FILE:ROW), original (FILE:ROW); written last

Document sizes are log-normal (median 2 KB, up to 1 MB), words follow Zipf's law over 200,000 made
words in Latin script, or 60,000 of Han characters in a fifth of the documents. Of 1000 documents 50
repeat one of an earlier file, 50 do so with a few words changed, 10 are empty, 20 a few words long.

A document is a pure function of the seed and its number: its words are a SplitMix64 stream (Steele
et al. 2014) whose state is a hash of the two. So nothing is kept in memory, a copy is made by
drawing its original's stream again, and integers alone decide: equal bytes on every machine. A word
with what follows it is an entry of one Arrow array, a file a `take` of entries.
"""

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U64 = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

TRUTH = "truth.tsv"
EXACT, NEAR, EMPTY, SHORT, ORDINARY = range(5)
SHARES = (50, 50, 10, 20, 870)  # of 1000 documents, in the order of the kinds
HAN_IN = 5  # one of so many documents is of Han characters
LATIN_WORDS, HAN_WORDS = 200_000, 60_000
MEDIAN, SIGMA, LONGEST = 2000, Decimal("1.4"), 1_000_000  # bytes of a document
MOST_CHANGED = 36  # a near-duplicate differs in up to one of so many words; Jaccard 0.8 is near 45

SLOTS = 1 << 22  # of a Zipf table: a random slot holds a random word
CHUNK = 4_000_000  # bytes made at a time
AHEAD = 2048  # documents planned at a time

# What follows a word, escaped as in JSON, and how often of 64.
AFTER_LATIN = (" ", ", ", ". ", ".\\n", ".\\n\\n")
AFTER_HAN = ("", "，", "。", "。\\n", "。\\n\\n")
OFTEN = (53, 4, 4, 2, 1)
OPEN, CLOSE = '{"text": "', '"}\n'

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Streams of draws, one for each question asked of a document.
KIND, ORIGIN, SCRIPT, SIZE, FEW, WORDS, CHANGES, PLACES = range(8)


def mix(x: U64) -> U64:
    """The finalizer of SplitMix64, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@dataclass(frozen=True)
class Made:
    """What was written."""

    bytes: int
    documents: int
    exact: int
    near: int


@dataclass(frozen=True)
class Planned:
    """Documents to write, an element of each array for each."""

    kind: Ints
    content: Ints
    """Number of the document whose words it has; its own, unless it is a copy."""
    han: Ints
    """1 for Han characters, 0 for Latin script."""
    words: Ints
    size: Ints
    """Expected bytes."""


@dataclass(frozen=True)
class Generator:
    """Documents by their number."""

    seed: int

    def draw(self, stream: int, numbers: Ints, nth: int = 0) -> U64:
        """uint64[n]: the answer of a stream for documents of these numbers."""
        key = mix(np.array([self.seed << 8 | stream << 4 | nth], np.uint64))
        return mix(key + numbers.astype(np.uint64) * GOLDEN)

    def plan(self, first: int, stop: int, older: int) -> Planned:
        """Documents first..stop-1; copies are of documents below `older`, or below themselves."""
        number = np.arange(first, stop)
        kind = self._kinds(number)
        content = number.copy()
        copy = kind <= NEAR
        open_ = copy & (number > 0)
        for nth in range(8):  # the first original of eight that is no copy and not empty
            at = np.flatnonzero(open_)
            bound = np.where(older, older, number[at]).astype(np.uint64)
            original = (self.draw(ORIGIN, number[at], nth) % bound).astype(np.int64)
            good = self._kinds(original) >= SHORT
            content[at[good]] = original[good]
            open_[at[good]] = False
        kind[copy & (content == number)] = ORDINARY
        source = self._kinds(content)
        han = (self.draw(SCRIPT, content) % np.uint64(HAN_IN) == 0).astype(np.int64)
        mean = np.array(lexicon().mean_bytes)[han]
        words = self._sizes(content) * 16 // mean + 1
        few = (self.draw(FEW, content) % np.uint64(8)).astype(np.int64) + 1
        words = np.where(source == SHORT, few, words)
        words[source == EMPTY] = 0
        return Planned(kind, content, han, words, words * mean // 16 + len(OPEN + CLOSE))

    def lines(self, first: int, plan: Planned, count: int) -> pa.Array:
        """JSON lines of the first `count` (>= 1) documents; an element is a word or a frame."""
        book = lexicon()
        words = plan.words[:count]
        ends = np.cumsum(words)
        starts = ends - words
        state = self.draw(WORDS, plan.content[:count]) - starts.astype(np.uint64) * GOLDEN
        x = np.arange(ends[-1], dtype=np.uint64)
        x *= GOLDEN
        x += state.repeat(words)
        mix(x)
        slot = (x & np.uint64(SLOTS - 1)).astype(np.int64)
        slot += (plan.han[:count] * SLOTS).repeat(words)
        word = book.zipf[slot]
        self._change(first, plan, count, starts, word)
        entry = np.empty(len(word) + 2 * count, np.int32)
        inside = np.ones(len(entry), bool)
        opens = starts + 2 * np.arange(count)
        closes = opens + words + 1
        entry[opens], entry[closes] = len(book.entries) - 2, len(book.entries) - 1
        inside[opens] = inside[closes] = False
        entry[inside] = word + book.after[(x >> np.uint64(58)).astype(np.int64)]
        return book.entries.take(pa.array(entry))

    def _kinds(self, number: Ints) -> Ints:
        of_1000 = (self.draw(KIND, number) % np.uint64(1000)).astype(np.int64)
        kind = np.searchsorted(np.cumsum(SHARES), of_1000, "right")
        return np.where((number == 0) & (kind < ORDINARY), ORDINARY, kind)

    def _sizes(self, number: Ints) -> Ints:
        """Log-normal: the sum of twelve 16-bit draws is as good as normal, and an integer."""
        total = np.zeros(len(number), np.int64)
        for nth in range(3):
            x = self.draw(SIZE, number, nth)
            total += x.view(np.uint16).reshape(-1, 4).sum(1, dtype=np.int64)
        return size_table()[total >> 8]

    def _change(
        self, first: int, plan: Planned, count: int, starts: Ints, word: npt.NDArray[np.int32]
    ) -> None:
        """Other words at a few places of near-duplicates."""
        near = np.flatnonzero(plan.kind[:count] == NEAR)
        length = plan.words[near]
        rate = (self.draw(CHANGES, near + first) >> np.uint64(48)).astype(np.int64)
        changes = np.maximum(1, (length * rate >> 16) // MOST_CHANGED)
        at = near.repeat(changes)
        nth = np.arange(len(at)) - (np.cumsum(changes) - changes).repeat(changes)
        x = mix(self.draw(PLACES, at + first) + nth.astype(np.uint64) * GOLDEN)
        place = starts[at] + ((x >> np.uint64(32)) % plan.words[at].astype(np.uint64)).astype(int)
        size = np.where(plan.han[at], HAN_WORDS, LATIN_WORDS)
        begin = np.where(plan.han[at], LATIN_WORDS, 0)
        step = 1 + (x & np.uint64(0xFFFF)).astype(np.int64) % (size - 1)
        word[place] = begin + (word[place] - begin + step) % size


@dataclass(frozen=True)
class Lexicon:
    """What documents are written with."""

    entries: pa.Array
    """binary: all words with the first thing that may follow them, all with the second ..., and
    the two frames of a line."""
    zipf: npt.NDArray[np.int32]
    """int32[2 * SLOTS]: a word for each slot, of Latin script, then of Han characters."""
    after: npt.NDArray[np.int32]
    """int32[64]: what to add to a word to have the entry with what follows it."""
    mean_bytes: tuple[int, int]
    """Sixteenths of a byte that a word of each script takes on average, with what follows."""


@functools.cache
def lexicon() -> Lexicon:
    """Made once for a process."""
    words = [pa.array(latin_words(), pa.string()), pa.array(han_words(), pa.string())]
    parts = [
        pc.binary_join_element_wise(word, after, "")
        for both in zip(AFTER_LATIN, AFTER_HAN)
        for word, after in zip(words, both)
    ]
    entries = pa.concat_arrays([*parts, pa.array([OPEN, CLOSE])]).cast(pa.binary())
    zipf = [zipf_table(LATIN_WORDS), zipf_table(HAN_WORDS) + np.int32(LATIN_WORDS)]
    total = LATIN_WORDS + HAN_WORDS
    size = np.asarray(pc.binary_length(entries))[:-2].reshape(-1, total).astype(np.int64)
    expected = (size * np.array(OFTEN)[:, None]).sum(0)  # in 64ths
    means = [int(np.bincount(table, minlength=total) @ expected) // (4 * SLOTS) for table in zipf]
    after = np.arange(len(OFTEN), dtype=np.int32).repeat(OFTEN) * np.int32(total)
    return Lexicon(entries, np.concatenate(zipf), after, (means[0], means[1]))


def zipf_table(words: int) -> npt.NDArray[np.int32]:
    """int32[SLOTS]: rank r fills a share of the slots in proportion to 1 / (r + 3)."""
    ranks = np.arange(words) + 3
    scale = SLOTS
    while (scale // ranks).sum() > SLOTS:
        scale -= scale >> 6
    table = np.arange(words).repeat(scale // ranks)
    rest = np.arange(SLOTS - len(table)) % words
    return np.concatenate([table, rest]).astype(np.int32)


@functools.cache
def size_table() -> Ints:
    """Bytes for each sum of twelve 16-bit draws, >> 8; Decimal rounds exp the same anywhere."""
    steps = ((Decimal(k * 256 + 128) - 12 * 32768) / 65536 for k in range(12 * 256))
    return np.array([min(LONGEST, int(MEDIAN * (SIGMA * z).exp())) for z in steps], np.int64)


def latin_words() -> Iterator[str]:
    """Distinct words of one syllable (the most frequent), two or three.

    A syllable is consonant, vowel, and perhaps a consonant, so that no two spell the same word.
    """
    syllables = [c + v + e for e in ("", *"nrsltmk") for c in "bdfghjklmnprstvwyz" for v in "aeiou"]
    n = len(syllables)
    for rank in range(LATIN_WORDS):
        if rank < n:
            yield syllables[rank * 7 % n]
        else:
            i = rank * 7919 % (n * n)
            third = syllables[rank * 31 % n] if rank % 3 == 0 else ""
            yield syllables[i // n] + syllables[i % n] + third


def han_words() -> Iterator[str]:
    """Distinct words of one Han character (the most frequent) or two."""
    for rank in range(HAN_WORDS):
        if rank < 2000:
            yield chr(0x4E00 + rank * 7)
        else:
            i = rank * 7919 % (2000 * 2000)
            yield chr(0x4E00 + i // 2000 * 7) + chr(0x4E00 + i % 2000 * 7)


def file_sizes(total: int, files: int) -> list[int]:
    """Bytes of each file: half of all in the middle one, the others from small to large."""
    if files == 1:
        return [total]
    half, parts = total // 2, files * (files - 1) // 2
    sizes = [half * i // parts for i in range(1, files)]
    sizes.insert(files // 2, total - half)
    return sizes


def make(out: Path, megabytes: int, files: int = 16, seed: int = 1) -> Made:
    """Writes the corpus (MB = 1,000,000 bytes) and its truth; a rename of truth.tsv ends it."""
    out.mkdir(parents=True, exist_ok=True)
    generator = Generator(seed)
    firsts: list[int] = []  # number of the first document of each file
    number = size = 0
    counts = [0, 0]
    unfinished = out / (TRUTH + ".tmp")
    with unfinished.open("w", encoding="ascii", newline="\n") as truth:
        truth.write("kind\tcopy\toriginal\n")
        for i, left in enumerate(file_sizes(megabytes * 1_000_000, files)):
            firsts.append(number)
            with (out / part_name(i)).open("wb") as f:
                while left > 0:
                    plan = generator.plan(number, number + AHEAD, firsts[-1])
                    room = np.cumsum(plan.size) <= min(CHUNK, left)
                    count = max(1, int(np.count_nonzero(room)))
                    lines = generator.lines(number, plan, count)
                    data = memoryview(lines.buffers()[2])
                    left -= f.write(data)
                    size += len(data)
                    for kind, copy, original in copies(plan, number, count):
                        counts[kind] += 1
                        at = place(original, firsts)
                        truth.write(f"{('exact', 'near')[kind]}\t{place(copy, firsts)}\t{at}\n")
                    number += count
    unfinished.replace(out / TRUTH)
    return Made(size, number, *counts)


def copies(plan: Planned, first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(kind, number of the copy, number of its original)."""
    for i in np.flatnonzero(plan.kind[:count] <= NEAR).tolist():
        yield int(plan.kind[i]), first + i, int(plan.content[i])


def place(number: int, firsts: list[int]) -> str:
    """FILE:ROW of a document."""
    file = int(np.searchsorted(firsts, number, "right")) - 1
    return f"{part_name(file)}:{number - firsts[file]}"


def part_name(file: int) -> str:
    """Base name of a file, in the order of writing when sorted."""
    return f"part-{file:03d}.jsonl"


def main() -> None:
    """Makes a corpus and says what is in it."""
    parser = argparse.ArgumentParser(description="A made corpus of any size.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=int, default=2000)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    made = make(args.out, args.mb, args.files, args.seed)
    print(
        f"{made.bytes:,} bytes, {made.documents:,} documents, of them {made.exact:,} exact and "
        f"{made.near:,} near copies, in {args.out}"
    )


if __name__ == "__main__":
    main()
