"""Work files: what is written in pieces reads as if it had been written at once."""

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
    for name, row in (("a.npy", 2), ("cut.npy", 1), ("none.npy", 0)):
        with pytest.raises(UserError, match=rf"(cannot read .*{name}|{name} vanished)"):
            read_array(tmp_path / name, row)
