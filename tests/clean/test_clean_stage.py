"""The stage: batches in, batches out, every document accounted for."""

import pickle
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.batch import DOCUMENTS, make_batch
from dataprep.clean import Clean
from dataprep.ledger import TaskLedger

ALL_RULES: Any = ["garbled", "punctuation_only", "gopher_quality"]


def run(texts: list[str], clean: Clean, split: int = 3) -> tuple[dict[int, str], TaskLedger]:
    """Kept texts by row, from batches of two documents, rows with gaps."""
    rows = [10 * i for i in range(len(texts))]
    batches = [
        make_batch(split, rows[i : i + 2], pa.array(texts[i : i + 2], pa.large_string()))
        for i in range(0, len(texts), 2)
    ]
    ledger = TaskLedger("x")
    out = list(clean(iter(batches), ledger))
    assert all(b.schema == DOCUMENTS and b.num_rows for b in out)
    kept = [(r["row"], r["text"]) for b in out for r in b.to_pylist()]
    assert all(r["split"] == split for b in out for r in b.to_pylist())
    assert [row for row, _ in kept] == sorted(row for row, _ in kept)
    return dict(kept), ledger


def test_short_documents_stay() -> None:
    """Lengths below any window neither crash nor merge."""
    kept, ledger = run(["", "短", "长", "\n\n", "短"], Clean())
    assert kept == {10: "短", 20: "长", 40: "短"}
    assert [r["row"] for b in ledger.removed for r in b.to_pylist()] == [0, 30]
    assert ledger.ledger.total("documents.removed.clean.empty") == 2


def test_steps_can_be_left_out() -> None:
    text = "  schÃ¶n \r\n\n\n"
    assert run([text], Clean())[0] == {0: "  schön"}
    assert run([text], Clean(whitespace=False))[0] == {0: "  schön \n\n\n"}
    assert run([text], Clean(fix_unicode=False, whitespace=False))[0] == {0: text}


def test_repairs_are_counted() -> None:
    assert (
        run(["schÃ¶n", "schön", "a\r"], Clean())[1].ledger.total("notes.clean.unicode_fixed") == 2
    )


def test_nothing_to_clean() -> None:
    assert run([], Clean())[0] == {}
    assert run(["", " "], Clean())[0] == {}
    empty = make_batch(0, [], pa.array([], pa.large_string()))
    assert list(Clean()(iter([empty]), TaskLedger("x"))) == []


WORDS = [
    "the",
    "and",
    "of",
    "word",
    "词",
    "#",
    "...",
    "- ",
    "\n",
    " ",
    "\ufffd",
    "\x07",
    "Ã©",
    "123",
]
TEXT = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=10)


@settings(deadline=None, max_examples=150)
@given(
    texts=st.lists(TEXT | TEXT.map(lambda t: t * 12), max_size=9),
    rules=st.sampled_from([[], ALL_RULES[:2], ALL_RULES]),
    min_chars=st.integers(0, 8),
)
def test_every_document_is_kept_or_removed_once(
    texts: list[str], rules: Any, min_chars: int
) -> None:
    clean = Clean(min_chars=min_chars, rules=rules)
    kept, ledger = run(texts, clean)
    removed = [r for b in ledger.removed for r in b.to_pylist()]
    rows = sorted([*kept, *(r["row"] for r in removed)])
    assert rows == [10 * i for i in range(len(texts))]
    assert ledger.ledger.total("documents.removed.") == len(removed)
    for r in removed:
        assert r["stage"] == "clean" and r["rule"]
        assert r["value"] != r["threshold"]
    # What is clean stays as it is.
    again, second = run(list(kept.values()), clean)
    assert list(again.values()) == list(kept.values())
    assert not second.removed


def test_a_stage_pickles() -> None:
    clean = Clean(rules=ALL_RULES, min_chars=7)
    assert pickle.loads(pickle.dumps(clean)) == clean
