"""Buckets and shards: literal ones, and that each element is in exactly one place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.buckets import MIB, Family, Part, make_buckets
from training.pieces import Slice

MATRIX = Family(apart=False, sliced=False, partial=False, decays=True, rounded=False)
NORM = Family(apart=False, sliced=False, partial=False, decays=False, rounded=False)
SLICED = Family(apart=False, sliced=True, partial=False, decays=True, rounded=False)
TIED = Family(apart=True, sliced=True, partial=False, decays=True, rounded=False)


def test_the_drawn_example() -> None:
    """a [2, 3], b [4] and c [1, 5] for 4 replicas; as one family here."""
    shapes = {"a": (2, 3), "b": (4,), "c": (1, 5)}
    (bucket,) = make_buckets([(n, Slice(s), MATRIX) for n, s in shapes.items()], 1, parts=4)
    a, b, c = bucket.members
    assert (bucket.size, [m.at for m in bucket.members]) == (16, [0, 6, 10])
    assert [bucket.shard(4, i).parts for i in range(4)] == [
        (Part(a, 0, 4, 0),),
        (Part(a, 4, 6, 0), Part(b, 0, 2, 2)),
        (Part(b, 2, 4, 0), Part(c, 0, 2, 2)),
        (Part(c, 2, 5, 0),),
    ]
    assert bucket.shard(1, 0).parts == (Part(a, 0, 6, 0), Part(b, 0, 4, 6), Part(c, 0, 5, 10))
    values = bucket.shard(4, 3).fill(lambda part: np.arange(part.first, part.last, dtype="f4"))
    assert values.tolist() == [2, 3, 4, 0]


def test_families_do_not_mix_and_the_tied_embedding_is_first() -> None:
    weights = [
        ("norm", Slice((4,)), NORM),
        ("o", Slice((4, 4), 1, 0, 2), SLICED),
        ("lora", Slice((2, 4)), MATRIX),
        ("embed", Slice((9, 4), 0, 0, 5), TIED),
        ("q", Slice((4, 4), 0, 2, 4), SLICED),
    ]
    buckets = make_buckets(weights, 1, parts=1)
    names = [[m.name for m in bucket.members] for bucket in buckets]
    assert names == [["embed"], ["o", "q"], ["lora"], ["norm"]]
    assert [[m.index for m in bucket.members] for bucket in buckets] == [[3], [1, 4], [2], [0]]
    assert [m.at for m in buckets[1].members] == [0, 8]


def test_a_bucket_is_full_at_its_size_but_holds_at_least_one() -> None:
    sizes = [MIB // 8, MIB // 8, MIB // 8, MIB, 1, 2]
    weights = [(f"w{i}", Slice((size,)), NORM) for i, size in enumerate(sizes)]
    members = [[m.index for m in bucket.members] for bucket in make_buckets(weights, 1, 1)]
    assert members == [[0, 1], [2], [3], [4, 5]]  # 1 MiB is MIB / 4 elements


def test_nothing_to_train_has_no_buckets() -> None:
    assert make_buckets([], 32, parts=4) == []


families = st.builds(
    Family, st.just(False), st.booleans(), st.booleans(), st.booleans(), st.booleans()
)


@given(st.lists(st.tuples(st.integers(1, 90000), families), max_size=12), st.integers(1, 8))
def test_each_element_is_in_one_shard(sizes: list[tuple[int, Family]], parts: int) -> None:
    weights = [(f"w{i}", Slice((size,)), family) for i, (size, family) in enumerate(sizes)]
    seen = {name: np.zeros(slice_.size, int) for name, slice_, _ in weights}
    for bucket in make_buckets(weights, 1, parts):
        count = sum(m.slice.size for m in bucket.members)
        assert all(weights[m.index][2] == bucket.family for m in bucket.members)
        assert bucket.size % parts == 0 and count <= bucket.size < count + parts
        assert len(bucket.members) == 1 or 4 * count <= MIB
        for shard in (bucket.shard(parts, i) for i in range(parts)):
            assert all(p.at >= 0 and p.at + p.last - p.first <= shard.size for p in shard.parts)
            for p in shard.parts:
                seen[p.member.name][p.first : p.last] += 1
    assert all((counts == 1).all() for counts in seen.values())
