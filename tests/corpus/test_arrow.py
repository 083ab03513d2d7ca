"""Work files: what is written in pieces reads as if it had been written at once."""

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.corpus.arrow import Spool, read_array, write_array


def test_two_blocks_of_two_rows(tmp_path: Path) -> None:
    with Spool(tmp_path, np.int64, 2) as spool:
        spool.add(np.array([[1, 2], [10, 20]]))
        spool.add(np.array([[3], [30]]))
        path = spool.save(tmp_path / "a.npy")
    assert read_array(path).tolist() == [[1, 2, 3], [10, 20, 30]]
    assert read_array(path, 1).tolist() == [10, 20, 30]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


@given(
    lengths=st.lists(st.integers(0, 5), max_size=6),
    rows=st.one_of(st.none(), st.integers(0, 3)),
    item=st.sampled_from([(), (2,)]),
    dtype=st.sampled_from(["int64", "uint64", "bool"]),
)
def test_a_spool_is_its_blocks_joined(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    rows: int | None,
    item: tuple[int, ...],
    dtype: str,
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    axis = 0 if rows is None else 1
    lead = () if rows is None else (rows,)
    rng = np.random.default_rng(1)
    blocks: list[npt.NDArray[np.generic]] = [
        rng.integers(0, 2, (*lead, n, *item)).astype(dtype) for n in [0, *lengths]
    ]
    with Spool(folder, dtype, rows, item) as spool:
        for block in blocks:
            spool.add(block)
        spool.save(folder / "a.npy")
    write_array(folder / "b.npy", np.concatenate(blocks, axis))
    assert (folder / "a.npy").read_bytes() == (folder / "b.npy").read_bytes()


def test_a_row_that_is_not_there(tmp_path: Path) -> None:
    write_array(tmp_path / "a.npy", np.zeros((2, 3)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    write_array(tmp_path / "line.npy", np.zeros(3))
    for name, row in (("a.npy", 2), ("cut.npy", 1), ("none.npy", 0), ("line.npy", 0)):
        with pytest.raises(UserError, match=rf"(cannot read .*{name}|{name} vanished)"):
            read_array(tmp_path / name, row)


def test_what_is_damaged_or_no_array_of_ours(tmp_path: Path) -> None:
    write_array(tmp_path / "a.npy", np.zeros((2, 3)))
    content = (tmp_path / "a.npy").read_bytes()
    np.save(tmp_path / "objects.npy", np.array([{}]))
    (tmp_path / "cut.npy").write_bytes(content[:-1])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "code.npy").write_bytes(content.replace(b"False", b"exit("))
    for name, told in {
        "dtype": (b"<f8", b"<f1"),
        "huge": (b"(2, 3)", b"(2, 999999999999)"),
    }.items():
        (tmp_path / f"{name}.npy").write_bytes(content.replace(*told))
    for name in ("objects", "cut", "empty", "code", "dtype", "huge"):
        with pytest.raises(UserError, match=rf"cannot read .*{name}.npy"):
            read_array(tmp_path / f"{name}.npy")


@pytest.fixture
def switching_while_parsing() -> Iterator[None]:
    """Garbage is collected every few objects, and other threads run meanwhile."""

    def switch(phase: str, info: dict[str, int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.0001)

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(5)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(switch)


@pytest.mark.usefixtures("switching_while_parsing")
def test_threads_read_at_once(tmp_path: Path) -> None:
    """Python 3.11 counts the depth of what it parses for all threads together."""
    path = write_array(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: read_array(path).tolist(), range(200)))
    assert found == [[[0, 1, 2], [3, 4, 5]]] * 200
