"""Tokens and shingles: rows to check by eye, then the kernel against its definition in Python."""

import ctypes
import mmap
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.batch import text_buffers
from dataprep.dedup import shingle
from dataprep.dedup.words import MARK, SEPARATOR, SINGLE, TABLE_SIZE, WORD, word_table

MULTI = Path(__file__).parents[3] / "shared" / "data" / "multi"

# The definition, in plain Python.

MASK = (1 << 64) - 1
Q = 0xD6E8FEB86659FD93
# Scripts by the names of their characters, where the module goes by blocks.
UNSPACED = ("THAI ", "LAO ", "KHMER ", "MYANMAR ", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA")
UNSPACED += ("HENTAIGANA", "HANGZHOU", "VERTICAL IDEOGRAPHIC", "VERTICAL KANA")
UNSPACED += ("IDEOGRAPHIC ITERATION", "IDEOGRAPHIC CLOSING", "IDEOGRAPHIC NUMBER")
IDEOGRAPHS = [(0x2E80, 0x2FE0), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00)]
IDEOGRAPHS += [(0x20000, 0x40000)]


def char_class(char: str) -> int:
    if any(start <= ord(char) < stop for start, stop in IDEOGRAPHS):
        return SINGLE
    major = unicodedata.category(char)[0]
    if major == "M" or char in "\uff9e\uff9f":
        return MARK
    if major not in "LN":
        return SEPARATOR
    return SINGLE if unicodedata.name(char, "").startswith(UNSPACED) else WORD


def lower(char: str) -> str:
    return char.lower() if len(char.lower()) == 1 else char


def tokens_of(text: str) -> list[str]:
    tokens: list[str] = []
    kind = SEPARATOR
    for char in text:
        this = char_class(char)
        if this == SEPARATOR:
            kind = SEPARATOR
        elif kind != SEPARATOR and (this == MARK or this == WORD == kind):
            tokens[-1] += lower(char)
        else:
            tokens.append(lower(char))
            kind = WORD if this == MARK else this
    return tokens


def mix64(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def token_hash(token: str) -> int:
    data = token.encode()
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    state = 0
    for word in words[:-1]:
        state = (state ^ word) * 0x9E3779B97F4A7C15 & MASK
        state ^= state >> 32
    return mix64(state ^ words[-1])


def shingle_hash(tokens: list[str]) -> int:
    value = len(tokens)
    for token in tokens:
        value = value * Q + token_hash(token) & MASK
    return mix64(value)


def shingles_of(text: str, ngram: int) -> list[int]:
    tokens = tokens_of(text)
    if not tokens:
        return []
    last = max(len(tokens) - ngram, 0)
    return [shingle_hash(tokens[i : i + ngram]) for i in range(last + 1)]


def flat(texts: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    return text_buffers(pa.array(texts, pa.large_string()))


def kernel(texts: list[str], ngram: int) -> list[list[int]]:
    hashes, offsets = shingle(*flat(texts), ngram)
    assert hashes.dtype == np.uint64 and offsets.dtype == np.int64
    assert offsets[0] == 0 and offsets[-1] == len(hashes) and len(offsets) == len(texts) + 1
    return [hashes[a:b].tolist() for a, b in pairwise(offsets)]


ROWS = [
    ("", []),
    (" ,.!\n—…", []),
    ("The cat, the CAT.", ["the", "cat", "the", "cat"]),
    ("snake_case3 don't", ["snake", "case3", "don", "t"]),
    ("antidisestablishmentarianism", ["antidisestablishmentarianism"]),
    ("12345678 123456789", ["12345678", "123456789"]),
    ("Straße ÉCOLE École", ["straße", "école", "école"]),
    ("e\u0301A\u0308", ["e\u0301a\u0308"]),
    ("İstanbul ΣΑΣ", ["İstanbul", "σασ"]),
    ("我是2个abc人", ["我", "是", "2", "个", "abc", "人"]),
    ("東京は、カタカナ", ["東", "京", "は", "カ", "タ", "カ", "ナ"]),
    ("ｶﾞｷﾞa", ["ｶﾞ", "ｷﾞ", "a"]),
    ("か\u3099x", ["か\u3099", "x"]),
    ("葛\U000e0100城", ["葛\U000e0100", "城"]),
    ("\U00020000\U00031350a", ["\U00020000", "\U00031350", "a"]),
    ("⽅法〇々", ["⽅", "法", "〇", "々"]),
    ("กำลัง", ["ก", "ำ", "ลั", "ง"]),
    ("ភាសា", ["ភា", "សា"]),
    ("မြန်မာ", ["မြ", "န်", "မာ"]),
    ("한국어 문장", ["한국어", "문장"]),
    ("हिन्दी में", ["हिन्दी", "में"]),
    ("\u0301abc", ["\u0301abc"]),
    ("Ⅷ𝔸\U00010400", ["ⅷ𝔸\U00010428"]),
    ("😀a😀", ["a"]),
]


@pytest.mark.parametrize("text, tokens", ROWS)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert tokens_of(text) == tokens
    assert kernel([text], 1) == [[shingle_hash([t]) for t in tokens]]


def test_ngrams() -> None:
    a, b, c = "a", "b", "c"
    assert kernel(["A b c"], 2) == [[shingle_hash([a, b]), shingle_hash([b, c])]]
    assert kernel(["A b c"], 3) == kernel(["A b c"], 9) == [[shingle_hash([a, b, c])]]
    assert kernel(["a b", "b a", "a b a b"], 2)[0] != kernel(["b a"], 2)[0]


def test_the_number_of_tokens_is_in_the_hash() -> None:
    hashes = [kernel(["a " * n], 9)[0] for n in range(1, 9)]
    assert all(len(h) == 1 for h in hashes)
    assert len({h[0] for h in hashes}) == 8


def test_documents_do_not_leak_into_each_other() -> None:
    texts = ["one two", "", "three", "中", "four five six seven eight nine"]
    assert kernel(texts, 2) == [kernel([text], 2)[0] for text in texts]


def test_offsets_may_start_above_zero() -> None:
    texts = pa.array(["skip 跳过 this", "one two three", "四五六"], pa.large_string())
    hashes, offsets = shingle(*text_buffers(texts[1:]), 2)
    assert hashes.tolist() == shingles_of("one two three", 2) + shingles_of("四五六", 2)
    assert offsets.tolist() == [0, 2, 4]


def test_no_documents() -> None:
    hashes, offsets = shingle(np.zeros(0, np.uint8), np.zeros(1, np.int64), 5)
    assert len(hashes) == 0 and offsets.tolist() == [0]


def test_ngram_below_one() -> None:
    with pytest.raises(ValueError, match="ngram is 0"):
        shingle(*flat(["a"]), 0)


def test_every_code_point_has_its_class_and_lower_case() -> None:
    table = word_table().tolist()
    assert len(table) == TABLE_SIZE
    for code, entry in enumerate(table):
        this = char_class(chr(code))
        expected = ord(lower(chr(code))) * 4 + this if this else 0
        assert entry == expected, hex(code)


MIXED = st.text(
    "aB9_ \u00e9\u00c9\u0301\u0130\u023a中が\uff76\uff9e\u0e01\u0e31\U0001d538\U00020000"
)
LATIN = st.text(st.sampled_from("abcdefgXYZ019 ,.'é—"), max_size=80)
TEXTS = st.lists(st.one_of(st.text(), MIXED, LATIN, st.text(max_size=200)), max_size=4)


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.integers(1, 7))
def test_kernel_is_the_definition(texts: list[str], ngram: int) -> None:
    assert kernel(texts, ngram) == [shingles_of(text, ngram) for text in texts]


def test_every_assigned_character_in_context() -> None:
    chars = [chr(c) for c in range(0x32000) if unicodedata.category(chr(c))[0] != "C"]
    chars += [chr(c) for c in range(0xE00FE, 0xE01F2)]
    text = "".join(f"{char}b{char}{' ' * (i % 3)}" for i, char in enumerate(chars))
    texts = [text[i : i + 10_000] for i in range(0, len(text), 10_000)]
    assert kernel(texts, 1) == [shingles_of(t, 1) for t in texts]


@pytest.mark.skipif(not MULTI.is_dir(), reason="the data sets are not here")
def test_real_texts_of_many_languages() -> None:
    files = sorted(MULTI.glob("tesseract_*.txt"))
    assert len(files) > 10
    texts = [path.read_text(encoding="utf-8")[:20_000] for path in files]
    texts.append((MULTI / "udhr2.jsonl").read_text(encoding="utf-8")[:200_000])
    assert kernel(texts, 5) == [shingles_of(text, 5) for text in texts]


def test_nothing_is_read_after_the_end() -> None:
    page = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ctypes.data + page), page, 0) == 0
    for text in ("a", "abcdefg", "abcdefgh", "a word, abcdefghi", "中文", "x 中"):
        encoded = np.frombuffer(text.encode(), np.uint8)
        data = memory[page - len(encoded) : page]
        data[:] = encoded
        hashes, _ = shingle(data, np.array([0, len(data)]), 2)
        assert hashes.tolist() == shingles_of(text, 2)


def test_a_megabyte_without_a_space() -> None:
    text = "aB3é" * 200_000
    assert kernel([text], 5) == [[shingle_hash([text.lower()])]]


def test_a_document_of_300k_tokens() -> None:
    words = [f"w{i % 7919}" for i in range(150_000)]
    text = " ".join(words) + "中文" * 75_000
    hashes = kernel([text], 5)[0]
    assert len(hashes) == 300_000 - 4
    assert hashes[1000] == shingle_hash(words[1000:1005])
    assert hashes[-1] == shingle_hash(list("文中文中文"))


def test_all_bits_of_a_hash_are_used() -> None:
    hashes = np.array(kernel([" ".join(map(str, range(40_000)))], 1)[0], np.uint64)
    assert len(np.unique(hashes)) == 40_000
    ones = [(hashes >> np.uint64(bit) & np.uint64(1)).mean() for bit in range(64)]
    assert max(abs(share - 0.5) for share in ones) < 0.015
