"""The exchange: every copy of every document arrives where it was sent, in its place, once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.corpus import BuildConfig, Write, build, exchange
from dataprep.corpus.exchange import TOKENS, Copies, Exchange, cuts
from dataprep.corpus.ranges import Range, Slice, fetch
from dataprep.readers import Input
from tests.conftest import document, write_jsonl
from tests.object_store import Bucket, Faulty

# Where one document goes: (shard, order) of each of its copies.
Sent = list[tuple[int, int]]


def batch(number: int, payload: list[int], sent: Sent, kind: pa.DataType) -> pa.RecordBatch:
    """One document; its number is its row."""
    columns = {
        "row": [number],
        "shards": pa.array([[shard for shard, _ in sent]], pa.list_(pa.int64())),
        "orders": pa.array([[order for _, order in sent]], pa.list_(pa.uint64())),
        "tokens": pa.array([payload], pa.large_list(kind)),
    }
    return pa.RecordBatch.from_pydict(columns)


def address(table: pa.Table, length: np.ndarray) -> Copies:
    assert len(length) == table.num_rows
    shards, orders = table["shards"].to_pylist(), table["orders"].to_pylist()
    document = np.repeat(np.arange(table.num_rows), [len(s) for s in shards])
    return Copies(
        document,
        np.array(sum(shards, []), np.int64),
        np.array(sum(orders, []), np.uint64),
        np.full(len(document), 7),
        np.asarray(table["row"])[document],
    )


def spill(
    path: Path,
    documents: list[tuple[list[int], Sent]],
    first: int = 0,
    how: Exchange = TOKENS,
) -> list[Range]:
    found = (batch(first + i, p, sent, how.kind) for i, (p, sent) in enumerate(documents))
    return exchange.sort(path, how.spill(path, found, address))


def slices(spills: dict[Path, list[Range]], shard: int) -> list[Slice]:
    """What a shard has in each spill."""
    parts = [Slice(p, [r for r in index if r.shard == shard]) for p, index in spills.items()]
    return [part for part in parts if part.ranges]


def received(parts: list[Slice], how: Exchange = TOKENS) -> list[tuple[int, list[int]]]:
    """(row, payload) of a shard's documents, in their order."""
    n = sum(r.values for part in parts for r in part.ranges)
    flat = np.empty(n, how.kind.to_pandas_dtype())
    documents = how.documents(parts, into=flat)
    ends = documents.offsets
    lists = [flat[ends[a] : ends[a + 1]].tolist() for a in documents.arrival]
    assert [len(x) for x in lists] == documents.length.tolist()
    return list(zip(documents.row.tolist(), lists))


def test_three_documents_two_shards(tmp_path: Path) -> None:
    documents = [([1, 2, 3], [(0, 50)]), ([4], [(1, 9), (0, 10)]), ([5, 6], [(0, 20)])]
    index = spill(tmp_path / "a", documents)
    assert [(r.shard, r.documents, r.values) for r in index] == [(0, 3, 6), (1, 1, 1)]
    assert received(slices({tmp_path / "a": index}, 0)) == [(1, [4]), (2, [5, 6]), (0, [1, 2, 3])]
    assert received(slices({tmp_path / "a": index}, 1)) == [(1, [4])]


def test_a_spill_is_an_arrow_stream(tmp_path: Path) -> None:
    """Any tool reads it."""
    spill(tmp_path / "a", [([1, 2, 3], [(0, 50)]), ([4], [(0, 10)])])
    table = pa.ipc.open_stream((tmp_path / "a").read_bytes()).read_all()
    assert table.to_pydict() == {
        "order": [10, 50],
        "file": [7, 7],
        "row": [1, 0],
        "tokens": [[4], [1, 2, 3]],
    }


def test_text_as_payload(tmp_path: Path) -> None:
    how = Exchange("tokens", pa.uint8())
    texts = [b"one", b"", "天地".encode()]
    index = spill(tmp_path / "a", [(list(t), [(0, 9 - i)]) for i, t in enumerate(texts)], how=how)
    found = received(slices({tmp_path / "a": index}, 0), how)
    assert [(row, bytes(text)) for row, text in found] == [(2, texts[2]), (1, b""), (0, b"one")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tasks=st.lists(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 9), max_size=6),
                st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=4),
            ),
            min_size=1,
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    ),
    memory=st.integers(1, 200),
)
def test_all_arrives_once_and_in_order(
    tasks: list[list[tuple[list[int], Sent]]],
    memory: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is sorted at a time; a local copy of the slices says the same."""
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "SPILL_BYTES", memory)
        spills, want, first = {}, [], 0
        for i, documents in enumerate(tasks):
            spills[tmp_path / str(i)] = spill(tmp_path / str(i), documents, first)
            want += [
                (shard, order, first + n, payload)
                for n, (payload, sent) in enumerate(documents)
                for shard, order in sent
            ]
            first += len(documents)
        for index in spills.values():
            # Each shard's ranges stand together.
            assert [r.shard for r in index] == sorted(r.shard for r in index)
            assert all(a.position + a.size == b.position for a, b in zip(index, index[1:]))
        for shard in {shard for shard, *_ in want}:
            parts = slices(spills, shard)
            got = received(parts)
            assert got == [(row, p) for s, _, row, p in sorted(want) if s == shard]
            assert received(fetch(parts, tmp_path / "copy")) == got


def test_only_wanted_documents(tmp_path: Path) -> None:
    index = spill(tmp_path / "a", [([i] * i, [(0, i)]) for i in range(1, 6)])
    flat = np.empty(6, np.int32)
    found = TOKENS.documents(
        slices({tmp_path / "a": index}, 0), lambda file, row: (file == 7) & (row % 2 == 1), flat
    )
    assert found.row.tolist() == [1, 3] and flat.tolist() == [2, 2, 4, 4, 4, 4]


def test_four_and_1024_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3000 documents of 30 tasks; each task's spill has at most one range for a shard."""
    monkeypatch.setattr(exchange, "SPILL_BYTES", 10_000)
    rng = np.random.default_rng(3)
    for shards in (4, 1024):
        spills: dict[Path, list[Range]] = {}
        want: dict[int, list[tuple[int, int, list[int]]]] = {}
        for task in range(30):
            documents: list[tuple[list[int], Sent]] = []
            for _ in range(100):
                payload = rng.integers(0, 999, rng.integers(1, 99)).tolist()
                place = int(rng.integers(0, shards)), int(rng.integers(0, 2**62))
                want.setdefault(place[0], []).append(
                    (place[1], 100 * task + len(documents), payload)
                )
                documents.append((payload, [place]))
            path = tmp_path / f"{shards}-{task}"
            spills[path] = spill(path, documents, 100 * task)
            if shards == 1024:
                assert len({r.shard for r in spills[path]}) == len(spills[path])
        for shard, sent in want.items():
            assert received(slices(spills, shard)) == [(row, p) for _, row, p in sorted(sent)]


def test_copies_of_one_document_are_not_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand copies of 1000 tokens in one shard: batches stay small."""
    monkeypatch.setattr(exchange, "SPILL_BYTES", 40_000)
    index = spill(tmp_path / "a", [(list(range(1000)), [(0, i) for i in range(1000)])])
    assert max(r.size for r in index) < 50_000
    assert sum(r.documents for r in index) == 1000


@pytest.mark.parametrize("damage", ["short", "zeros", "gone"])
def test_a_damaged_spill_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "spill.arrow"
    parts = slices({path: spill(path, [([1, 2], [(0, 1)])])}, 0)
    if damage == "gone":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        path.write_bytes(bytes(path.stat().st_size))
    told = "vanished; run again" if damage == "gone" else ": .*; delete the work folder"
    with pytest.raises(UserError, match=f"spill.arrow.*{told}"):
        TOKENS.documents(parts)


@pytest.fixture
def remote(s3: Bucket, tmp_path: Path) -> Callable[[int], Iterator[Slice]]:
    """A shard's slices of so many remote spills."""

    def make(n: int) -> Iterator[Slice]:
        for i in range(n):
            path = tmp_path / str(i)
            index = spill(path, [([i] * 9, [(s, i)]) for s in range(50)], 50 * i)
            yield Slice(s3.put(f"b/{i}.arrow", path.read_bytes()), [index[20]])

    return make


def test_a_remote_slice_is_one_request(
    remote: Callable[[int], Iterator[Slice]], faulty: Faulty
) -> None:
    parts = list(remote(25))
    faulty.seen.clear()
    assert received(parts) == [(50 * i + 20, [i] * 9) for i in range(25)]
    assert faulty.count("GET", r"/b/\d+\.arrow") == 25
    assert faulty.count() <= 2 * 25 + 1  # and one for the size of each


def test_remote_ranges_beyond_what_is_asked_ahead(
    remote: Callable[[int], Iterator[Slice]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataprep.corpus.ranges.AHEAD", 1000)
    parts = list(remote(8))
    assert received(fetch(parts, tmp_path / "copy")) == received(parts)


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 20))
def test_cuts(sizes: list[int], limit: int) -> None:
    found = cuts(np.array(sizes, np.int64), limit)
    assert [i for first, stop in found for i in range(first, stop)] == list(range(len(sizes)))
    assert all(sum(sizes[a:b]) <= limit or b - a == 1 for a, b in found)
    # As few as can be: the next item would not have fitted.
    assert all(sum(sizes[a : b + 1]) > limit for a, b in found[:-1])


def test_builds_of_four_and_1024_shards(config_for: Callable[..., BuildConfig]) -> None:
    """3000 documents, three or so in a shard: the same ones, with the same tokens."""
    config = config_for()
    path = write_jsonl(Path(config.out_dir + ".jsonl"), [document(i, 1) for i in range(3000)])
    found = []
    for shards in (4, 1024):
        result = build(
            replace(
                config,
                inputs=[Input(str(path))],
                out_dir=f"{config.out_dir}{shards}",
                write=Write(shards=shards),
            )
        )
        assert len(result.manifest.splits["train"]) == shards
        assert result.ledger.imbalances() == []
        tables = [pq.read_table(p) for p in (result.out_dir / "audit/rows").glob("*.parquet")]
        rows = pa.concat_tables(tables).group_by("source_row").aggregate([("length", "sum")])
        found.append(sorted(zip(*(rows[name].to_pylist() for name in rows.column_names))))
    assert found[0] == found[1] and len(found[0]) == 3000
