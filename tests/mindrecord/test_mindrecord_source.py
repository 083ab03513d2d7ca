"""IndexableSource: any rows of many shards, in any order, and every defect named."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataprep
import dataprep.mindrecord.source as module
from dataprep.errors import UserError
from dataprep.mindrecord import IndexableSource, Layout, ShardWriter

COLUMNS = {"ids": 31, "mask": 40}
COUNTS = (700, 1, 350)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, np.ndarray]]:
    """Three shards of several pages each, and all their rows."""
    rng = np.random.default_rng(0)
    rows = {
        "ids": rng.integers(-40_000, 40_000, (sum(COUNTS), 31)).astype(np.int32),
        "mask": rng.integers(0, 2, (sum(COUNTS), 40)).astype(np.int32),
    }
    folder, first, paths = tmp_path_factory.mktemp("数据 set"), 0, []
    for i, count in enumerate(COUNTS):
        paths.append(folder / f"train-{i}.mindrecord")
        with ShardWriter(paths[-1], COLUMNS, Layout(1 << 14, 1 << 15)) as writer:
            writer.write({name: values[first : first + count] for name, values in rows.items()})
        first += count
    return paths, rows


def test_the_rows_of_all_shards_as_one_sequence(shards: Any) -> None:
    paths, rows = shards
    with IndexableSource([str(path) for path in paths]) as source:
        assert source.columns == COLUMNS
        assert source.starts.tolist() == [0, 700, 701, 1_051]
        assert len(source) == 1_051
        for i in (0, 699, 700, 701, 1_050):
            ids, mask = source[i]
            assert ids.dtype == mask.dtype == np.int32
            np.testing.assert_array_equal(ids, rows["ids"][i])
            np.testing.assert_array_equal(mask, rows["mask"][i])
        for i in (-1, 1_051):
            with pytest.raises(IndexError, match=f"row {i} of 1,051"):
                source[i]
        assert source.read([])["ids"].shape == (0, 31)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_order_in_batches(shards: Any, data: st.DataObject) -> None:
    paths, rows = shards
    order = np.array(data.draw(st.lists(st.integers(0, 1_050), max_size=80)), np.int64)
    batch, threads = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    names = data.draw(st.sampled_from([None, ["ids"], ["mask"], ["mask", "ids"]]))
    drop = data.draw(st.booleans())
    with IndexableSource(paths, names) as source:
        got = list(source.batches(order, batch, drop, threads))
    full, rest = divmod(len(order), batch)
    assert [len(block[name]) for block in got for name in block] == [
        size for size in [batch] * full + [rest] * (rest > 0 and not drop) for _ in source.columns
    ]
    wanted = order[: full * batch] if drop else order
    for name in source.columns:
        parts = [block[name] for block in got] or [np.empty((0, COLUMNS[name]), np.int32)]
        np.testing.assert_array_equal(np.concatenate(parts), rows[name][wanted])
    assert list(source.columns) == (names or ["ids", "mask"])


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_grow_from_one_batch_to_their_limit(
    shards: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch comes soon, memory is bounded, and what is ahead is never much."""
    sizes: list[int] = []
    fill = IndexableSource._fill

    def spy(self: IndexableSource, room: Any) -> dict[str, np.ndarray]:
        sizes.append(len(room[0]))
        return fill(self, room)

    monkeypatch.setattr(IndexableSource, "_fill", spy)
    limit = "BLOCK_BYTES" if threads == 1 else "AHEAD_BYTES"
    monkeypatch.setattr(module, limit, 4 * sum(COLUMNS.values()) * 10 * 5)
    with IndexableSource(shards[0]) as source:
        batches = source.batches(np.arange(1_000), 10, threads=threads)
        assert sizes == []  # nothing happens before it is wanted
        next(batches)
        assert sorted(sizes) in ([10], [10, 20], [10, 20, 40])
        assert len(list(batches)) == 99
    assert sorted(sizes) == sorted([10, 20, 40, *[50] * 18, 30])


def test_a_caller_who_has_had_enough_leaves_no_thread(shards: Any) -> None:
    before = threading.active_count()
    with IndexableSource(shards[0]) as source:
        batches = source.batches(np.arange(1_051), 1, threads=3)
        next(batches)
        del batches
        gc.collect()
        assert threading.active_count() == before


def test_many_threads_read_one_source(shards: Any) -> None:
    paths, rows = shards
    with IndexableSource(paths) as source:
        wrong: list[int] = []

        def work(seed: int) -> None:
            order = np.random.default_rng(seed).permutation(1_051)
            for i, batch in enumerate(source.batches(order, 50)):
                if not np.array_equal(batch["ids"], rows["ids"][order[50 * i : 50 * i + 50]]):
                    wrong.append(seed)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert wrong == []


def test_arrays_outlive_the_source(shards: Any) -> None:
    paths, rows = shards
    source = IndexableSource(paths)
    batches = source.batches(np.arange(20), 5)
    kept = next(batches)
    source.close()
    np.testing.assert_array_equal(kept["ids"], rows["ids"][:5])
    with pytest.raises(ValueError, match="after close"):
        source.read([0])
    with pytest.raises(ValueError, match="after close"):
        list(batches)


def test_files_are_mapped_when_needed_and_unmapped_at_the_end(shards: Any) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what a process has mapped")

    def mapped() -> list[bool]:
        return [path.name in maps.read_text("utf-8", "replace") for path in shards[0]]

    source = IndexableSource(shards[0])
    assert mapped() == [False, False, False]
    source.read([701])
    assert mapped() == [False, False, True]
    source.read([0, 700])
    assert mapped() == [True, True, True]
    source.close()
    assert mapped() == [False, False, False]


@pytest.mark.parametrize("workers", [1, 2])
def test_mindspore_takes_it_as_a_source(shards: Any, workers: int) -> None:
    paths, rows = shards
    with IndexableSource(paths, ["mask", "ids"]) as source:
        loader = ds.GeneratorDataset(
            source,
            ["mask", "ids"],
            shuffle=False,
            num_parallel_workers=workers,
            python_multiprocessing=False,
        )
        read = list(loader.create_dict_iterator(num_epochs=1, output_numpy=True))
    for name in rows:
        np.testing.assert_array_equal(np.stack([row[name] for row in read]), rows[name])


def test_more_shards_than_files_may_be_open(shards: Any) -> None:
    """In a process of its own that may open 64 files: 300 shards, the index beside none of them."""
    program = (
        "import resource, sys, numpy as np\n"
        "from dataprep.mindrecord import IndexableSource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "source = IndexableSource([sys.argv[1]] * 300)\n"
        "order = np.random.default_rng(0).permutation(len(source))\n"
        "rows = sum(len(batch['ids']) for batch in source.batches(order, 8, False, threads=2))\n"
        "print(rows, len(source))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(shards[0][0])],
        env={"PYTHONPATH": str(Path(dataprep.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("210000 210000\n", "")


def test_what_a_caller_may_not_ask_for(shards: Any) -> None:
    paths, _ = shards
    for names, message in (
        (["ids", "label"], r"no column 'label'; its int32 .* are \['ids', 'mask'\]"),
        ([], r"no columns like \[\]"),
        (["ids", "ids"], "no columns like"),
    ):
        with pytest.raises(UserError, match=f"train-0.mindrecord has {message}"):
            IndexableSource(paths, names)
    with pytest.raises(UserError, match="no rows to read in 0 shards"):
        IndexableSource([])
    with IndexableSource(paths) as source:
        for row in (-1, 1_051):
            with pytest.raises(UserError, match=f"row {row} is out of range: .* rows 0 to 1,050"):
                source.read([0, row])
            with pytest.raises(UserError, match=f"row {row} is out of range"):
                source.batches(np.array([row, 0]), 1)
        for rows in (np.zeros((1, 1), np.int64), [0.5], [True], ["0"]):
            with pytest.raises(ValueError, match="must be int64"):
                source.read(rows)
        for batch, threads in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match="must be at least 1"):
                source.batches([0], batch, threads=threads)


@pytest.fixture
def own(tmp_path: Path, write: Callable[..., ShardWriter]) -> list[Path]:
    """Two shards of 200 rows of 300 elements (687 bytes a row, 47 a page), to be damaged."""
    paths = [tmp_path / "a.mindrecord", tmp_path / "b.mindrecord"]
    for path in paths:
        write(path, {"ids": np.full((200, 300), 1_000, np.int32)})
    return paths


def test_shards_that_do_not_belong_together(
    own: list[Path], tmp_path: Path, write: Callable[..., ShardWriter]
) -> None:
    longer, other = tmp_path / "longer.mindrecord", tmp_path / "other.mindrecord"
    write(longer, {"ids": np.zeros((3, 301), np.int32)})
    write(other, {"ids": np.zeros((3, 300), np.int32), "mask": np.zeros((3, 1), np.int32)})
    message = "longer.mindrecord has .*'ids' as int32 .301., but int32 .300. is in .*a.mindrecord"
    with pytest.raises(UserError, match=message):
        IndexableSource([*own, longer])
    message = "other.mindrecord has the field 'mask' as int32 .1., but none is in .*a.mindrecord"
    with pytest.raises(UserError, match=message):
        IndexableSource([*own, other])
    with pytest.raises(UserError, match="cannot read .*c.mindrecord: No such file"):
        IndexableSource([*own, tmp_path / "c.mindrecord"])
    with pytest.raises(UserError, match="b.mindrecord.db is damaged: it is not a MindRecord"):
        IndexableSource([own[0], Path(f"{own[1]}.db")])


@pytest.mark.parametrize("threads", [1, 2])
def test_damage_is_named_when_its_row_is_read(own: list[Path], threads: int) -> None:
    with own[1].open("r+b") as file:
        file.seek((1 << 14) + 5 * 687 + 12)
        file.write(b"\xff")  # width codes of row 5
        file.seek((1 << 14) + (1 << 16) + 687)  # page 2, the second of rows
        file.write(b"\xff")  # length of row 48
    with IndexableSource(own) as source:
        assert source.read([0, 200, 204, 206])["ids"].tolist() == [[1_000] * 300] * 4
        with pytest.raises(
            UserError, match="b.mindrecord is damaged: row 5 .row 205 of all.: it do"
        ):
            list(source.batches(np.arange(240), 3, threads=threads))
        with pytest.raises(UserError, match="b.mindrecord is damaged: in the page from row 47 on"):
            source.read([247])


def test_a_shard_that_is_cut_while_it_is_in_use(own: list[Path]) -> None:
    with IndexableSource(own) as source:
        source.read([0])
        own[1].write_bytes(own[1].read_bytes()[:30_000])
        with pytest.raises(UserError, match="b.mindrecord became shorter since it was opened"):
            source.read([200])
