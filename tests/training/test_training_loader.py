"""The loader: what each rank sees, an exact resume at every position, mixes, both readers."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.errors import UserError
from dataprep.manifest import Manifest
from training import readers
from training.config import Folder
from training.data import Data, Loader, eval_batches
from training.folders import open_splits

Numbered = Callable[..., Path]
READERS = ("mindspore", "direct")


def rows(data: Data, steps: int, batch: int, **options: Any) -> list[list[int]]:
    """The rows of each batch, by their first token."""
    with Loader(data, batch_size=batch, **options) as loader:
        return [b["input_ids"][:, 0].tolist() for b in islice(loader, steps)]


def flat(parts: list[list[int]]) -> list[int]:
    return [row for part in parts for row in part]


@pytest.fixture
def mix(numbered: Numbered) -> list[Folder]:
    """7 rows from 0 on twice, 9 rows from 20 on, 5 rows from 40 on by halves: 26 an epoch."""
    return [
        Folder(str(numbered(7, name="a", vocab_size=60)), 2.0),
        Folder(str(numbered(9, 20, name="b", vocab_size=60, preset="mindformers"))),
        Folder(str(numbered(5, 40, name="c", vocab_size=60, preset="legacy")), 0.5),
    ]


@pytest.mark.parametrize("reader", READERS)
def test_the_order_is_the_shards_order_and_the_rest_is_trimmed(
    numbered: Numbered, reader: Any
) -> None:
    out_dir = numbered(11)
    assert rows(out_dir, 5, 3, reader=reader) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [0, 1, 2],
        [3, 4, 5],
    ]
    with Loader(out_dir, batch_size=3, reader=reader) as loader:
        assert (loader.epoch.steps, loader.epoch.rows, loader.epoch.trimmed_rows) == (3, 9, 2)
        shard = out_dir / "train" / "train-00001-of-00002.mindrecord"
        assert loader.trimmed() == [f"{shard} row 3", f"{shard} row 4"]
        assert loader.steps_until(epochs=3) == 9


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_ranks_see_each_row_once(numbered: Numbered, ranks: int, seed: int | None) -> None:
    """And the rows that are named as trimmed are those that nobody saw, in each of 3 epochs."""
    n, out_dir = 19, numbered(19)
    one = flat(rows(out_dir, 3 * n, 1, seed=seed, reader="direct"))
    loaders = [
        Loader(out_dir, rank=r, ranks=ranks, batch_size=2, seed=seed, reader="direct")
        for r in range(ranks)
    ]
    for epoch in range(3):
        steps = n // (2 * ranks)
        assert all(loader.steps_until(epoch + 1) == steps for loader in loaders)
        unseen = {
            int(t.rsplit(" ", 1)[1]) + 10 * ("train-00001" in t) for t in loaders[0].trimmed()
        }
        parts = [
            flat([b["input_ids"][:, 0].tolist() for b in islice(loader, steps)])
            for loader in loaders
        ]
        woven = [row for some in zip(*parts, strict=True) for row in some]
        assert woven == one[epoch * n : epoch * n + 2 * steps * ranks]  # for any number of ranks
        assert Counter(woven) == Counter(set(range(n)) - unseen)
    for loader in loaders:
        loader.close()


def test_more_ranks_than_rows_are_refused(numbered: Numbered) -> None:
    with pytest.raises(UserError, match="the data has 3 rows and one step takes 4"):
        Loader(numbered(3), rank=0, ranks=4, batch_size=1)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", [None, 5])
def test_resume_at_every_position_of_three_epochs(
    numbered: Numbered, reader: Any, seed: int | None
) -> None:
    out_dir = numbered(11)  # 3 steps of 3 rows, 2 rows trimmed
    options: dict[str, Any] = {"seed": seed, "reader": reader}
    straight = rows(out_dir, 9, 3, **options)
    assert len(set(map(tuple, straight))) == (3 if seed is None else 9)
    with Loader(out_dir, batch_size=3, **options) as first:
        for done in range(10):
            state = json.loads(json.dumps(first.state()))
            with Loader(out_dir, batch_size=3, **options) as second:
                second.restore(state)
                assert second.epoch == first.epoch
                rest = [b["input_ids"][:, 0].tolist() for b in islice(second, 9 - done)]
            assert rest == straight[done:]
            next(first)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", [None, 5])
def test_resume_under_another_number_of_ranks(
    numbered: Numbered, reader: Any, seed: int | None
) -> None:
    """Two ranks of 2 rows, then three of 1: what they read is the rest of the one order."""
    out_dir = numbered(13)
    one = flat(rows(out_dir, 39, 1, seed=seed, reader="direct"))
    with Loader(out_dir, ranks=2, batch_size=2, seed=seed, reader="direct") as first:
        for _ in range(9):
            state = first.state()
            parts = []
            for rank in range(3):
                options: dict[str, Any] = {"rank": rank, "ranks": 3, "seed": seed}
                with Loader(out_dir, batch_size=1, reader=reader, **options) as second:
                    second.restore(state)
                    steps = second.epoch.steps
                    parts.append(
                        flat([b["input_ids"][:, 0].tolist() for b in islice(second, steps)])
                    )
            woven = [row for some in zip(*parts, strict=True) for row in some]
            consumed = state["consumed"]
            assert woven == one[consumed : consumed + 3 * steps]
            assert len(woven) > 13 - consumed % 13 - 3
            next(first)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", [None, 5])
def test_a_mix_counts_its_weights(mix: list[Folder], reader: Any, seed: int | None) -> None:
    made = rows(mix, 6 * 13, 2, seed=seed, reader=reader)
    for epoch in range(6):
        seen = Counter(flat(made[epoch * 13 : epoch * 13 + 13]))
        assert [seen[row] for row in range(7)] == [2] * 7
        assert [seen[row] for row in range(20, 29)] == [1] * 9
        assert sum(seen[row] for row in range(40, 45)) == 3  # 2.5, rounded
    halves = [row for row in flat(made) if row >= 40]
    assert [sorted(halves[i : i + 5]) for i in (0, 5, 10)] == [list(range(40, 45))] * 3
    assert [row // 20 for row in flat(made[:6])] == [0, 1, 0, 1, 2, 0, 0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("seed", [None, 5])
def test_a_mix_resumes_at_every_position(mix: list[Folder], seed: int | None) -> None:
    """With both readers, and under other ranks: rows of three folders, three presets."""
    straight = rows(mix, 15, 5, seed=seed, reader="direct")
    assert straight == rows(mix, 15, 5, seed=seed, reader="mindspore")
    one = flat(rows(mix, 78, 1, seed=seed, reader="direct"))
    with Loader(mix, batch_size=5, seed=seed, reader="direct") as first:
        for done in range(15):
            state = first.state()
            reader: Any = READERS[done % 2]
            with Loader(mix, batch_size=5, seed=seed, reader=reader) as second:
                second.restore(state)
                rest = [b["input_ids"][:, 0].tolist() for b in islice(second, 15 - done)]
            assert rest == straight[done:]
            with Loader(mix, rank=1, ranks=2, batch_size=1, seed=seed, reader=reader) as second:
                second.restore(state)
                steps, begin = second.epoch.steps, state["consumed"]
                rest = [b["input_ids"][:, 0].tolist() for b in islice(second, steps)]
            assert flat(rest) == one[begin + 1 : begin + 2 * steps : 2]
            next(first)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("reader", READERS)
def test_a_rank_that_needs_no_row_of_a_folder(
    numbered: Numbered, reader: Any, workers: int
) -> None:
    """Even folders on two ranks: rank 0 gets one of them only, but for the rest of an epoch that
    is begun at an odd place. Nobody may look for more of the other for ever."""
    data = [
        Folder(str(numbered(40, name="a", vocab_size=140))),
        Folder(str(numbered(40, 100, name="b", vocab_size=140))),
    ]
    one = flat(rows(data, 240, 1, seed=7, reader="direct"))
    for ranks in (1, 2, 4):
        for consumed in (0, 3, 37, 75):
            options: dict[str, Any] = {
                "ranks": ranks,
                "seed": 7,
                "reader": reader,
                "workers": workers,
            }
            begin = consumed + (5 if consumed == 75 and ranks == 4 else 0)  # too few for a step
            parts = [
                rows(data, 40 // ranks, 2, rank=rank, consumed=consumed, **options)
                for rank in range(ranks)
            ]
            rest = 80 - begin % 80
            steps = min(40 // ranks, rest // (2 * ranks))
            got = [
                parts[rank][step][i]
                for step in range(steps)
                for i in range(2)
                for rank in range(ranks)
            ]
            assert got == one[begin : begin + len(got)]
            assert all(len(batch) == 2 for part in parts for batch in part)


@pytest.mark.parametrize("reader", READERS)
def test_a_batch_larger_than_a_folder_of_weight_two(numbered: Numbered, reader: Any) -> None:
    made = rows([Folder(str(numbered(11)), 2.0)], 4, 16, seed=5, reader=reader)
    assert [len(batch) for batch in made] == [16] * 4


def test_a_larger_step_names_what_it_leaves(
    numbered: Numbered, caplog: pytest.LogCaptureFixture
) -> None:
    out_dir = numbered(11)
    loader = Loader(out_dir, batch_size=4)
    loader.restore({**loader.state(), "consumed": 8})
    assert loader.consumed == 11
    assert "3 rows at the end of epoch 0 do not fill a step of 4" in caplog.text
    assert "train-00001-of-00002.mindrecord row 2, " in caplog.text


def test_numpys_integers_are_integers(numbered: Numbered) -> None:
    loader = Loader(numbered(11), seed=np.int64(3), batch_size=np.int32(2), consumed=np.int64(4))
    assert json.loads(json.dumps(loader.state()))["consumed"] == 4
    next(loader)
    json.dumps(loader.state())


def test_one_folder_in_a_list_is_that_folder(numbered: Numbered) -> None:
    out_dir = numbered(11)
    alone, listed = Loader(out_dir, seed=5), Loader([Folder(str(out_dir))], seed=5)
    assert alone.state() == listed.state()
    assert alone.fingerprint == Manifest.load(out_dir).fingerprint
    double = Loader([Folder(str(out_dir), 2.0)], seed=5)
    assert double.fingerprint != alone.fingerprint
    assert double.rows == 22
    assert Counter(flat(rows([Folder(str(out_dir), 2.0)], 11, 2))) == dict.fromkeys(range(11), 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seq_length": 5}, "seq_length is 4 there and 5 here"),
        ({"isolate": False}, "isolate_documents is True there and False here"),
        ({"vocab_size": 99}, "the tokenizer's vocab_size is 11 there and 99 here"),
    ],
)
def test_folders_that_do_not_go_together(
    numbered: Numbered, options: dict[str, Any], told: str
) -> None:
    folders = [
        Folder(str(numbered(11))),
        Folder(str(numbered(9, name="other", **{"vocab_size": 11, **options}))),
    ]
    with pytest.raises(UserError, match=f"data and .*other cannot be mixed: {told}"):
        Loader(folders)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_windows_and_blocks_change_nothing(
    numbered: Numbered, monkeypatch: pytest.MonkeyPatch, early: bool, batch: int
) -> None:
    out_dir = numbered(11)
    expected = rows(out_dir, 40, batch, seed=5, reader="direct")
    monkeypatch.setattr(readers, "opens_early", lambda *_: early)
    for window, block in ((1, 1), (5, 1 << 6), (7, 1 << 9), (1 << 20, 1 << 7)):
        monkeypatch.setattr(readers, "FIRST_WINDOW", window)
        monkeypatch.setattr(readers, "WINDOW", max(8, window))
        monkeypatch.setattr(readers, "BLOCK_BYTES", block)
        for reader in READERS:
            for workers in (1, 2):
                options: dict[str, Any] = {"reader": reader, "workers": workers, "prefetch": 2}
                assert rows(out_dir, 40, batch, seed=5, **options) == expected


def test_both_readers_give_equal_batches(packed: Numbered) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 99, rng.integers(1, 20)).tolist() for _ in range(60)]
    out_dir = packed(documents)
    one, other = (Loader(out_dir, batch_size=4, seed=1, reader=r) for r in READERS)
    with one, other:
        for _ in range(2 * one.epoch.steps):
            a, b = next(one), next(other)
            assert all(np.array_equal(a[name], b[name]) for name in a)
            assert all(rows.flags.c_contiguous and rows.flags.writeable for rows in a.values())


def test_a_batch_is_nobody_elses(numbered: Numbered) -> None:
    """Writing into one changes neither the file nor another batch."""
    out_dir = numbered(12)
    for reader in READERS:
        with Loader(out_dir, batch_size=3, reader=reader) as loader:
            for batch in islice(loader, 8):
                for array in batch.values():
                    array[:] = 99
        assert flat(rows(out_dir, 4, 3, reader=reader)) == list(range(12))


def test_a_state_of_something_else_is_refused(numbered: Numbered) -> None:
    out_dir = numbered(11, splits=("train", "eval"))
    loader = Loader(out_dir, seed=5)
    state = loader.state()
    for other, told in [
        (Loader(numbered(12, name="other"), seed=5), "another data set .the manifests'"),
        (Loader(out_dir, seed=6), "another seed: seed is 5 there and 6 here"),
        (Loader(out_dir), "another seed: seed is 5 there and None here"),
        (Loader(out_dir, seed=5, split="eval"), "another split: split is train there"),
    ]:
        with pytest.raises(UserError, match=f"the loader's state is of {told}"):
            other.restore(state)
    with pytest.raises(UserError, match="another version's order of rows: order is other there"):
        loader.restore({**state, "order": "other"})
    with pytest.raises(UserError, match=r"has the keys \['consumed'\]"):
        loader.restore({"consumed": 3})
    with pytest.raises(UserError, match="state is None, no mapping"):
        loader.restore(None)
    for damaged in (-1, "3", None, 2.5, True, 10**30):
        with pytest.raises(UserError, match="state is damaged: consumed is"):
            loader.restore({**state, "consumed": damaged})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rank": 2, "ranks": 2}, "rank is 2 of 2: give 0 to 1"),
        ({"batch_size": 0}, "batch_size is 0: give a number above 0"),
        ({"prefetch": 0}, "prefetch is 0: give a number above 0"),
        ({"seed": -1}, "seed is -1: give a number from 0"),
        ({"consumed": -1}, "consumed is -1: give 0 or more rows"),
        ({"consumed": 10**30}, "give 0 or more rows"),
        ({"seed": 3.5}, "seed is 3.5: give a whole number"),
        ({"reader": "mindspre"}, "reader is 'mindspre': give one of mindspore, direct"),
        ({"vocab_size": -5}, "vocab_size is -5: give a number above 0"),
        ({"split": "eval"}, "has no split 'eval'; it has: train"),
        ({"workers": 0}, "data_workers is 0: give 1 to"),
        ({"workers": 4096, "reader": "direct"}, "data_workers is 4096: give 1 to"),
    ],
)
def test_a_wrong_number_is_named(numbered: Numbered, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Loader(numbered(11), **options)


@pytest.mark.parametrize("seed", [None, 5])
def test_a_mind_dataset_of_stored_columns(packed: Numbered, seed: int | None) -> None:
    out_dir = packed([[i] * 4 for i in range(11)], "compact", 4, shards=1)
    loader = Loader(out_dir, rank=1, ranks=2, batch_size=2, seed=seed, consumed=4)
    dataset = loader.mind_dataset()
    got = list(dataset.create_dict_iterator(num_epochs=1, output_numpy=True))
    assert [list(batch) for batch in got] == [["input_ids", "segments"]]
    assert [b["input_ids"][:, 0].tolist() for b in got] == [
        b["input_ids"][:, 0].tolist() for b in islice(loader, loader.epoch.steps)
    ]
    assert loader.mind_dataset(["segments"]).get_col_names() == ["segments"]
    loader.close()
    with pytest.raises(UserError, match="a mix of folders is no single MindDataset"):
        Loader([Folder(str(out_dir)), Folder(str(out_dir))]).mind_dataset()


def test_prefetch_leaves_mindspores_setting(numbered: Numbered) -> None:
    import mindspore.dataset as ds

    before = ds.config.get_prefetch_size()
    assert len(rows(numbered(11), 9, 3, prefetch=3)) == 9
    assert ds.config.get_prefetch_size() == before


@pytest.mark.parametrize("reader", READERS)
def test_eval_rows_all_count_once(numbered: Numbered, reader: Any) -> None:
    splits = open_splits(numbered(5, splits=("train", "eval")), "eval")
    batches = list(eval_batches(splits, 2, 10, reader=reader))
    assert [batch["input_ids"][:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 0]]
    assert [batch["loss_mask"].sum(1).tolist() for batch in batches] == [[3, 3], [3, 3], [3, 0]]
    assert len(list(eval_batches(splits, 2, 2, reader=reader))) == 2
    assert len(list(eval_batches(splits, 16, 2, reader=reader))) == 1


def test_eval_of_a_mix_leaves_out_folders_without(numbered: Numbered) -> None:
    options: dict[str, Any] = {"vocab_size": 60}
    folders = [
        Folder(str(numbered(4, name="a", splits=("train", "eval"), **options)), 2.0),
        Folder(str(numbered(4, 20, name="b", **options))),
        Folder(str(numbered(2, 40, name="c", splits=("eval",), **options))),
    ]
    splits = open_splits(folders, "eval", skip_empty=True)
    (batch,) = eval_batches(splits, 6, 9, reader="direct")
    assert batch["input_ids"][:, 0].tolist() == [0, 40, 1, 2, 41, 3]
    with pytest.raises(UserError, match="none of .*b has a split 'eval'"):
        open_splits(folders[1:2], "eval", skip_empty=True)
