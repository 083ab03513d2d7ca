"""White space: literal examples, then the kernel against its definition in Python."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.clean.whitespace import tidy_whitespace


def array(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def reference(text: str) -> str:
    out: list[str] = []
    for line in text.split("\n"):
        line = line.rstrip(" \t\u00a0\u3000")
        if line or (out and out[-1]):
            out.append(line)
    while out and not out[-1]:
        out.pop()
    return "\n".join(out)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("\n\n", ""),
        (" \t\u00a0\u3000\n\t", ""),
        ("a", "a"),
        ("a\n", "a"),
        ("\n\n  def f():  \n\n\n\n    pass \n", "  def f():\n\n    pass"),
        ("a\n\nb", "a\n\nb"),
        ("a\n \n\t\n\u3000\nb", "a\n\nb"),
        ("a  b\t \nc", "a  b\nc"),
        ("全角　空格　\n　缩进", "全角　空格\n　缩进"),
        ("no-break\u00a0\u00a0", "no-break"),
        # Characters that end in the same bytes as the spaces above.
        ("à", "à"),
        ("à \u3000à", "à \u3000à"),
        ("一\u3040\u4e00", "一\u3040\u4e00"),
        ("\u2003\u200b", "\u2003\u200b"),
    ],
)
def test_examples(before: str, after: str) -> None:
    assert tidy_whitespace(array([before])).to_pylist() == [after]
    assert reference(before) == after


PIECES = st.sampled_from(
    ["\n", "\n\n", " ", "\t", "\u00a0", "\u3000", "a", "中", "à", "\u3040", "\r"]
)
TEXT = st.lists(PIECES | st.characters(codec="utf-8"), max_size=25).map("".join)


@settings(deadline=None, max_examples=300)
@given(st.lists(TEXT, max_size=6))
def test_the_kernel_is_its_definition(texts: list[str]) -> None:
    # A slice, so that neither bytes nor offsets begin at 0.
    tidy = tidy_whitespace(array(["before  ", *texts, "after  "]).slice(1, len(texts)))
    tidy.validate(full=True)
    assert tidy.to_pylist() == [reference(t) for t in texts]
    assert tidy_whitespace(tidy).equals(tidy)
