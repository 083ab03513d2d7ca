"""A shard larger than its memory is made part by part; nobody can tell from its bytes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.corpus import BuildConfig, Eval, Write, build, exchange, parts
from dataprep.corpus.exchange import TOKENS
from dataprep.corpus.parts import open_shard
from dataprep.corpus.ranges import Slice
from dataprep.engine import Engine
from dataprep.pack import Pack, make_rows
from dataprep.storage import Place, Remote
from tests.corpus.test_determinism import tree
from tests.corpus.test_exchange import Sent, spill

Make = Callable[..., BuildConfig]
Documents = list[list[int]]
PAD = -1


def spilled(folder: Path, documents: Documents) -> list[Slice]:
    """A shard's documents in two spills, in reverse order."""
    sent: list[tuple[list[int], Sent]] = [(d, [(0, 99 - i)]) for i, d in enumerate(documents)]
    half = len(sent) // 2
    found = {folder / "a": sent[:half], folder / "b": sent[half:]}
    return [Slice(path, spill(path, part, len(part))) for path, part in found.items() if part]


def rows(slices: list[Slice], pack: Pack, budget: int, folder: Place) -> tuple[Any, list[int]]:
    """(all that may be stored of all rows, tokens of each part)."""
    n = sum(r.values for part in slices for r in part.ranges)
    with open_shard(slices, None, n, budget, pack.place, folder) as shard:
        made, sizes = [], []
        for part in shard.parts:
            found = make_rows(
                part.pieces,
                0,
                part.pieces.rows,
                part.tokens,
                part.offsets,
                pack.seq_length,
                PAD,
                pack.ends,
            )
            made.append(vars(found))
            sizes.append(len(part.tokens))
    return {k: np.concatenate([m[k] for m in made]).tolist() for k in made[0]}, sizes


def test_a_document_of_five_in_rows_of_two(tmp_path: Path) -> None:
    """A row at a time; the last label of a row is the token after it, which is not in it."""
    slices = spilled(tmp_path, [[1, 2, 3, 4, 5]])
    found, sizes = rows(slices, Pack(2, "concat", isolate_documents=False), 1, tmp_path)
    assert found["tokens"] == [[1, 2, 3], [3, 4, 5], [5, PAD, PAD]]
    assert found["labels"] == [[2, 3], [4, 5], [-100, -100]]
    assert sizes == [3, 3, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    strategy=st.sampled_from(["concat", "best_fit"]),
    seq_length=st.integers(2, 17),
    isolate=st.booleans(),
    budget=st.integers(1, 500),
)
def test_parts_make_the_same_rows(
    lengths: list[int],
    strategy: Any,
    seq_length: int,
    isolate: bool,
    budget: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Documents longer than a row, and than the budget, are among them."""
    tmp_path = tmp_path_factory.mktemp("shard")
    token = iter(range(10**6))
    slices = spilled(tmp_path, [[next(token) for _ in range(n)] for n in lengths])
    pack = Pack(seq_length, strategy, isolate, 5)
    whole, (size,) = rows(slices, pack, 1 << 30, tmp_path)
    assert size == sum(lengths)
    found, sizes = rows(slices, pack, 4 * budget, tmp_path)
    assert found == whole
    if size > budget:
        assert max(sizes) <= max(budget, 2 * seq_length)  # at least a row, and tokens after it
        assert sum(sizes) >= size


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """write.buffer_mib counts bytes, and little is sorted at a time."""
    monkeypatch.setattr("dataprep.corpus.pass_c.MIB", 1)
    monkeypatch.setattr(exchange, "SPILL_BYTES", 4000)


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
@pytest.mark.parametrize("isolate", [True, False])
def test_a_small_budget_changes_no_byte(
    config_for: Make, tiny: None, strategy: Any, isolate: bool
) -> None:
    """Rows of 64 tokens; documents of up to 900, 3,600 bytes."""
    pack = Pack(64, strategy, isolate, 16)
    config = replace(config_for("whole", pack=pack), work_dir=str(config_for().out) + ".work")
    expected = tree(build(config).out_dir)
    for i, budget in enumerate((1, 900, 10_000)):
        engine = Engine(workers=1 + i % 2, quiet=True)
        write = replace(config.write, buffer_mib=budget)
        other = replace(config, out_dir=f"{config.out_dir}{i}", write=write, engine=engine)
        assert tree(build(other).out_dir) == expected
    assert not list(config.work.rglob("*.tmp"))


def test_a_budget_is_in_no_fingerprint(config_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run is the same run; an unfinished one is not redone."""
    config = config_for(write=Write(shards=3, buffer_mib=7))
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.corpus.passes.Passes.write_audit", _stop)
        with pytest.raises(UserError, match="stopped here"):
            build(config)
    done = {p: p.stat().st_mtime_ns for p in config.work.rglob("receipt.json")}
    other = replace(config, write=Write(shards=3, buffer_mib=8))
    build(other)
    assert all(p.stat().st_mtime_ns == t for p, t in done.items())
    assert not build(config).seconds


def _stop(self: object) -> None:
    raise UserError("stopped here")


def test_what_a_killed_attempt_left_is_removed(config_for: Make, tiny: None) -> None:
    config = config_for(write=Write(shards=1, buffer_mib=900), eval=Eval(0))
    left = config.work / "c/train-00000/tokens.0123abcd.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 1000)
    build(config)
    assert not left.exists()


def test_a_full_disk_is_told(config_for: Make, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = exchange.Exchange.spill

    def full(self: Any, path: Path, *args: Any) -> Any:
        if path.name.startswith("tokens."):
            raise OSError(28, "No space left on device")
        return real(self, path, *args)

    monkeypatch.setattr(exchange.Exchange, "spill", full)
    config = config_for(write=Write(shards=1, buffer_mib=900))
    with pytest.raises(UserError, match=r"cannot write .*tokens.*: No space left .*; free some"):
        build(config)
    assert not list(config.work.rglob("*.tmp"))


@pytest.fixture
def store() -> Iterator[Remote]:
    """A remote place in this process's memory."""
    fs = fsspec.filesystem("memory")
    yield Remote("memory://parts")
    fs.store.clear()


def test_remote_slices_are_read_once(
    tmp_path: Path, store: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice is enough of a local copy; nothing is left of it."""
    token = iter(range(10**6))
    local = spilled(tmp_path, [[next(token) for _ in range(9 + i)] for i in range(40)])
    there = []
    for part in local:
        assert isinstance(part.spill, Path)
        fsspec.filesystem("memory").pipe(f"/parts/{part.spill.name}", part.spill.read_bytes())
        there.append(replace(part, spill=store / part.spill.name))
    asked = []
    real = parts.fetch

    def fetch(slices: list[Slice], path: Path) -> list[Slice]:
        asked.append(path)
        out = real(slices, path)
        assert all(isinstance(part.spill, Path) for part in out)
        return out

    monkeypatch.setattr(parts, "fetch", fetch)
    pack = Pack(16, max_documents=5)
    whole, _ = rows(local, pack, 1 << 30, tmp_path)
    assert rows(there, pack, 1 << 30, tmp_path)[0] == whole and not asked
    found, sizes = rows(there, pack, 400, store / "c")
    assert found == whole and len(sizes) > 5
    assert len(asked) == 1 and not asked[0].exists()


@pytest.mark.parametrize("bad", [0, -1])
def test_no_budget(bad: int) -> None:
    with pytest.raises(UserError, match="write.buffer_mib is .*; it must be 1 or more"):
        Write(buffer_mib=bad)


def test_tokens_are_int32() -> None:
    """Budgets count 4 bytes a token."""
    assert TOKENS.kind.bit_width == 32
