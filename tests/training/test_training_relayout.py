"""What is saved in one layout is read in any other, to the bit; and only if it is whole."""

import json
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UserError
from tests.training.checkpoints import state
from training.checkpoint import open_checkpoint
from training.pieces import Float32, Kind, Piece, Slice
from training.rankfile import read_index, read_rank, write_rank
from training.relayout import Tensors, check_whole, overlaps, runs
from training.saver import Saver

KINDS: tuple[Kind, ...] = ("w", "m", "v")
Place = tuple[Slice, int, int]


def test_runs_of_columns() -> None:
    """The picture in relayout.py: columns 2..4 of [4, 6], elements 1..6 of them."""
    starts, stops = runs(Slice((4, 6), 1, 2, 5), 1, 7)
    assert [starts.tolist(), stops.tolist()] == [[3, 8, 14], [5, 11, 15]]


def test_overlaps_of_columns_and_rows() -> None:
    """Columns 2..4 of [4, 6] (twelve elements), and rows 1..2 (elements 6..17 of the whole)."""
    columns, rows = runs(Slice((4, 6), 1, 2, 5), 0, 12), runs(Slice((4, 6), 0, 1, 3), 0, 12)
    assert overlaps(columns, rows).tolist() == [[3, 2, 3], [6, 8, 3]]
    assert overlaps(columns, runs(Slice((4, 6), 0, 3, 4), 3, 6)).tolist() == [[10, 0, 2]]
    assert overlaps(runs(Slice((4, 6)), 0, 7), runs(Slice((4, 6)), 7, 9)).tolist() == []


def test_what_is_whole() -> None:
    """[2, 4] by columns 0..2 (one of them in two shards) and column 3."""
    left, right = Slice((2, 4), 1, 0, 3), Slice((2, 4), 1, 3, 4)
    whole = [(right, 0, 2), (left, 4, 6), (left, 0, 4)]
    assert check_whole("x", whole) == (2, 4)
    for parts in (whole[1:], [*whole, whole[0]], [whole[0], (left, 3, 6), (left, 0, 4)]):
        with pytest.raises(UserError, match="x is damaged: its pieces do not hold each element ex"):
            check_whole("x", parts)
    with pytest.raises(UserError, match="x is damaged: its pieces are of tensors of different sh"):
        check_whole("x", [*whole[1:], (Slice((2, 5), 1, 3, 4), 0, 2)])


def cuts(draw: st.DrawFn, total: int, parts: int) -> list[tuple[int, int]]:
    """`parts` ranges that make up 0..total; some may be empty."""
    inner = draw(st.lists(st.integers(0, total), min_size=parts - 1, max_size=parts - 1))
    edges = [0, *sorted(inner), total]
    return list(zip(edges, edges[1:]))


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Place]:
    """A tensor divided along any axis or none, and each part into flat shards."""
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    if axis is None:
        parts = [Slice(shape)]
    else:
        tp = draw(st.integers(1, 4))
        ranges = cuts(draw, shape[axis], tp)
        parts = [Slice(shape, axis, start, stop) for start, stop in ranges if start < stop]
    dp = draw(st.integers(1, 4))
    places = [(p, a, b) for p in parts for a, b in cuts(draw, p.size, dp) if a < b]
    return draw(st.permutations(places))


shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def relayouts(draw: st.DrawFn) -> list[tuple[tuple[int, ...], list[Place], list[Place]]]:
    """Some tensors: shape, layout when saved, layout when read."""
    return [
        (shape, draw(layouts(shape)), draw(layouts(shape)))
        for shape in draw(st.lists(shapes, min_size=1, max_size=4))
    ]


def random_values(shape: tuple[int, ...], seed: int) -> Float32:
    """Any bits: NaNs and denormals must come back as they were."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, prod(shape), np.uint64)
    return bits.astype(np.uint32).view(np.float32).reshape(shape)


def part_of(values: Float32, place: Place) -> Float32:
    """The reference: NumPy's own indexing."""
    part, first, last = place
    if part.axis is not None:
        values = np.take(values, range(part.start, part.stop), part.axis)
    return values.reshape(-1)[first:last].copy()


@settings(max_examples=60, deadline=None)
@given(relayouts(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_layout_reads_what_any_other_wrote(tensors: Any, ranks: int, random: Any) -> None:
    owned: list[list[Piece]] = [[] for _ in range(ranks)]
    truth = {}
    for i, (shape, saved, _) in enumerate(tensors):
        for kind in KINDS:
            values = random_values(shape, random.getrandbits(32))
            truth[kind, f"t{i}"] = values
            for place in saved:
                get = part_of(values, place).copy
                owned[random.randrange(ranks)].append(Piece(kind, f"t{i}", *place, get))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for rank, pieces in enumerate(owned):
            write_rank(path, rank, "", pieces, None)
        found = Tensors(path, (p for rank in range(len(owned)) for p in read_rank(path, rank)))
        for i, (shape, _, wanted) in enumerate(tensors):
            for kind in KINDS:
                assert found.shapes[kind, f"t{i}"] == shape
                for place in wanted:
                    read = found.read(kind, f"t{i}", *place)
                    assert read.dtype == np.float32
                    assert read.tobytes() == part_of(truth[kind, f"t{i}"], place).tobytes()


@st.composite
def placed(draw: st.DrawFn) -> list[Place]:
    """A whole layout in which some pieces may be left out, be double, or be changed."""
    shape = draw(shapes)
    places = list(draw(layouts(shape)))
    for _ in range(draw(st.integers(0, 2))):
        i = draw(st.integers(0, len(places) - 1))
        places += draw(st.sampled_from([[], [places[i]], draw(layouts(shape))[:1]]))
        if len(places) > 1 and draw(st.booleans()):
            places.pop(i)
    return places


@settings(max_examples=200, deadline=None)
@given(placed())
def test_whole_means_that_counting_gives_ones(places: list[Place]) -> None:
    shape = places[0][0].shape
    order = np.arange(prod(shape)).reshape(shape)
    counts = np.zeros(prod(shape), int)
    for place in places:
        np.add.at(counts, part_of(order, place), 1)  # type: ignore[arg-type]
    try:
        assert check_whole("x", places) == shape
        whole = True
    except UserError:
        whole = False
    assert whole == (counts == 1).all()


def test_from_four_savers_to_one_process(tmp_path: Path) -> None:
    """Two parts by rows, each in two shards, all through the saver; read as one, and as columns."""
    values = {kind: random_values((6, 4), i) for i, kind in enumerate(KINDS)}
    savers = [Saver(tmp_path, rank, 4) for rank in range(4)]
    for rank, one in enumerate(savers):
        place = Slice((6, 4), 0, *((0, 4) if rank < 2 else (4, 6)))
        half = place.size // 2
        first = half * (rank % 2)
        owned = [
            Piece(k, "a", place, first, first + half, part_of(v, (place, first, first + half)).copy)
            for k, v in values.items()
        ]
        one.save(state(3), owned)
    for one in savers:
        one.wait()
    found = open_checkpoint(tmp_path / "step-00000003")
    for kind in KINDS:
        for place in ((Slice((6, 4)), 0, 24), (Slice((6, 4), 1, 1, 3), 3, 11)):
            expected = part_of(values[kind], place).tobytes()
            assert found.read(kind, "a", *place).tobytes() == expected
    with pytest.raises(UserError, match=r"a is \[6, 4\] in .* but \[6, 5\] in the model of this"):
        found.read("w", "a", Slice((6, 5)), 0, 30)
    with pytest.raises(UserError, match="holds no tensor w.b, which the model of this run has"):
        found.read("w", "b", Slice((6, 4)), 0, 24)


def one_piece(folder: Path) -> Path:
    values = np.zeros(6, np.float32)
    write_rank(folder, 0, "", [Piece("w", "a", Slice((4, 3), 0, 1, 3), 0, 6, values.copy)], None)
    return folder / "rank-00000.json"


def changed_piece(tmp_path: Path, change: dict[str, Any]) -> Path:
    """The same with other keys in the index's only piece."""
    path = one_piece(tmp_path)
    content = read_index(path)
    content["pieces"][0] |= change
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"},
        {"name": 1},
        {"key": None},
        {"shape": [4, 0]},
        {"shape": [4, -3]},
        {"shape": [1 << 40, 1 << 40]},
        {"shape": [True, 3]},
        {"axis": 2},
        {"axis": -1},
        {"axis": 0.0},
        {"start": 3},
        {"stop": 5},
        {"start": -1},
        {"first": 6},
        {"last": 7},
        {"first": 0.5},
        {"more": 1},
    ],
)
def test_an_index_with_an_impossible_piece_is_damaged(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = changed_piece(tmp_path, change)
    with pytest.raises(UserError, match=r"rank-00000.json is damaged: piece 0 is {'key'"):
        read_index(path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"save": "", "file": null, "pieces": 3}', "{"])
def test_an_index_of_another_kind_is_damaged(tmp_path: Path, content: str) -> None:
    path = one_piece(tmp_path)
    path.write_text(content)
    with pytest.raises(UserError, match="rank-00000.json is damaged"):
        read_index(path)


@pytest.mark.parametrize("change", [{"key": "w.a:1"}, {"last": 5}])
def test_an_index_that_does_not_fit_its_tensors_is_damaged(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    changed_piece(tmp_path, change)
    with pytest.raises(UserError, match="json is damaged: .*safetensors holds no float32"):
        read_rank(tmp_path, 0)
