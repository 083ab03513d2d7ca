"""Tokenized Hugging Face data sets; the judge of what they hold is the `datasets` package."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep import Manifest, UserError
from dataprep.convert import ExportConfig, Tokenized, export_megatron, huggingface, import_tokens
from dataprep.convert.huggingface import ArrowFile, ParquetFile
from dataprep.convert.inputs import find_data_sets
from dataprep.corpus import Write
from dataprep.trace import document_fate
from dataprep.verify import verify
from tests.convert import judge
from tests.convert.conftest import MakeImport

DOCUMENTS: list[list[int] | None] = [
    *([(i * j) % 100 for j in range(i % 13)] for i in range(150)),
    None,
    [1, 2],
]


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def data_set(documents: list[list[int] | None] = DOCUMENTS) -> datasets.Dataset:
    texts = [str(i) for i in range(len(documents))]
    kind = datasets.List(datasets.Value("int32"))
    features = datasets.Features({"text": datasets.Value("string"), "input_ids": kind})
    return datasets.Dataset.from_dict({"text": texts, "input_ids": documents}, features)


def read_all(source: ArrowFile | ParquetFile) -> list[list[int] | None]:
    found = source.look()
    out: list[list[int] | None] = []
    for lists in source.read(0, len(found.lengths)):
        assert lists.first == len(out)
        ids = [lists.ids[a:b].tolist() for a, b in zip(lists.offsets, lists.offsets[1:])]
        missing = [False] * len(ids) if lists.missing is None else lists.missing.tolist()
        out += [None if gone else one for one, gone in zip(ids, missing)]
    assert found.lengths.tolist() == [len(ids or []) for ids in out]
    return out


def by_judge(folder: Path) -> list[list[int] | None]:
    return list(datasets.load_from_disk(str(folder))["input_ids"])


@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_data_set(tmp_path: Path, import_of: MakeImport, shards: int) -> None:
    """Row i of the folder is row i of the data set, whichever file it stands in."""
    folder = tmp_path / "data"
    data_set().save_to_disk(folder, num_shards=shards)
    assert len(list(folder.glob("*.arrow"))) == shards
    config = import_of(folder, write=Write(shards=3, columns="compact"))
    manifest = import_tokens(config).manifest
    expected = by_judge(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.arrow"))
    assert manifest.inputs == [
        {
            "path": str(folder),
            "source": "default",
            "format": "arrow",
            "bytes": size,
            "rows": len(expected),
        }
    ]
    counts = manifest.ledger["default"]
    assert counts["documents.removed.import.missing"] == 1
    assert counts["documents.removed.import.empty"] == sum(ids == [] for ids in expected)
    for row in (3, 77, 100, len(expected) - 1):
        pieces = document_fate(config.out, manifest, str(folder), row).pieces
        assert sum(piece.length for piece in pieces) == len(expected[row] or [])
    assert verify(config.out).defects == []
    export_megatron(ExportConfig(config.out_dir, str(tmp_path / "x"), quiet=True))
    assert judge.read(tmp_path / "x")[1] == [ids for ids in expected if ids]


def test_a_dict_of_splits(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    splits = {"train": data_set(), "test": data_set([[7], [8, 9]])}
    datasets.DatasetDict(splits).save_to_disk(folder)
    (one,) = find_data_sets([Tokenized(str(folder), split="test")])
    assert one.path == str(folder / "test")
    assert read_all(one.parts[0].source) == [[7], [8, 9]]  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has several splits; set split to one of: train, test"):
        find_data_sets([Tokenized(str(folder))])
    with pytest.raises(UserError, match="has no split 'eval'; set split to one of: train, test"):
        find_data_sets([Tokenized(str(folder), split="eval")])
    with pytest.raises(UserError, match="is one data set, without splits; leave split 'x' out"):
        find_data_sets([Tokenized(str(folder / "train"), split="x")])


def test_parquet_of_datasets(tmp_path: Path, import_of: MakeImport) -> None:
    data_set().to_parquet(tmp_path / "a.parquet", batch_size=40)
    data_set([[5], [6]]).to_parquet(tmp_path / "b.parquet")
    assert pq.ParquetFile(tmp_path / "a.parquet").metadata.num_row_groups > 1
    assert read_all(ParquetFile(tmp_path / "a.parquet", "input_ids")) == DOCUMENTS
    config = import_of(tmp_path / "*.parquet", shuffle=False)
    manifest = import_tokens(config).manifest
    assert [told["rows"] for told in manifest.inputs] == [len(DOCUMENTS), 2]
    assert verify(config.out).defects == []
    export_megatron(ExportConfig(config.out_dir, str(tmp_path / "x"), quiet=True))
    assert judge.read(tmp_path / "x")[1] == [ids for ids in [*DOCUMENTS, [5], [6]] if ids]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(st.none() | st.lists(st.integers(0, 99), max_size=6), max_size=25),
    kind=st.sampled_from(
        [pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
    ),
    large=st.booleans(),
    batch=st.integers(1, 9),
    data=st.data(),
)
def test_any_lists_in_any_form(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int] | None],
    kind: pa.DataType,
    large: bool,
    batch: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("hf")
    form = (pa.large_list if large else pa.list_)(kind)
    table = pa.table({"x": list(range(len(documents))), "input_ids": pa.array(documents, form)})
    sources: list[Any] = []
    for name, new in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with new(folder / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=batch)
        sources.append(ArrowFile(folder / name, "input_ids"))
    pq.write_table(table, folder / "parquet", row_group_size=batch)
    sources.append(ParquetFile(folder / "parquet", "input_ids"))
    for source in sources:
        assert read_all(source) == documents
        begins = [*source.look().begins.tolist(), len(documents)]
        first, stop = sorted(
            (data.draw(st.sampled_from(begins)), data.draw(st.sampled_from(begins)))
        )
        got = [lists.offsets for lists in source.read(first, stop)]
        assert sum(len(offsets) - 1 for offsets in got) == stop - first
        ids = [i for lists in source.read(first, stop) for i in lists.ids.tolist()]
        assert ids == [i for one in documents[first:stop] for i in one or []]


def test_lists_of_fixed_size(tmp_path: Path) -> None:
    """What stands behind a null is no part of the data."""
    flat = pa.array([1, 2, 3, 4, 5, 6], pa.int32())
    mask = pa.array([False, True, False])
    column = pa.FixedSizeListArray.from_arrays(flat, 2, mask=mask)
    table = pa.table({"input_ids": column})
    with pa.ipc.new_stream(tmp_path / "a", table.schema) as writer:
        writer.write_table(table)
    assert read_all(ArrowFile(tmp_path / "a", "input_ids")) == [[1, 2], None, [5, 6]]


def test_pieces_of_a_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "READ_BYTES", 16)
    data_set().to_parquet(tmp_path / "a.parquet")
    data_set().save_to_disk(tmp_path / "b")
    for source in (
        ParquetFile(tmp_path / "a.parquet", "input_ids"),
        ArrowFile(tmp_path / "b" / "data-00000-of-00001.arrow", "input_ids"),
    ):
        assert read_all(source) == DOCUMENTS
        assert max(len(lists.ids) for lists in source.read(0, len(DOCUMENTS))) <= 12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([[0.5]]), "column 'input_ids' of .* holds values of type list<.*double>"),
        (pa.array(["text"]), "holds values of type string, not token ids; tokenize"),
        (pa.array([[[1]]]), "holds values of type list<.*list<"),
        (pa.array([5]), "holds values of type int64, not token ids"),
        (pa.array([[1], [2, None]]), "row 1 has a null among its ids; remove the row"),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_columns_that_are_no_ids(
    tmp_path: Path, import_of: MakeImport, values: pa.Array, message: str, form: str
) -> None:
    table = pa.table({"input_ids": values})
    path = tmp_path / "x"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(UserError, match=message) as e:
        import_tokens(import_of(path))
    assert str(path) in str(e.value)


def test_another_column(tmp_path: Path, import_of: MakeImport) -> None:
    pq.write_table(pa.table({"a": [[1]], "b": [[2]]}), tmp_path / "x")
    with pytest.raises(UserError, match="x has no column 'input_ids'; set column to one of: 'a'"):
        import_tokens(import_of(tmp_path / "x"))
    config = import_of(inputs=[Tokenized(str(tmp_path / "x"), column="b")])
    assert import_tokens(config).manifest.ledger[""]["tokens.placed"] == 1


def test_an_id_outside_of_the_vocabulary(tmp_path: Path, import_of: MakeImport) -> None:
    table = pa.table({"input_ids": pa.array([[1], [5, 2**63 + 5]], pa.list_(pa.uint64()))})
    pq.write_table(table, tmp_path / "x")
    with pytest.raises(UserError, match=r"x: document 1 has the id 9223372036854775813 \(its tok"):
        import_tokens(import_of(tmp_path / "x"))


@pytest.mark.parametrize("form", ["parquet", "stream", "file"])
def test_a_damaged_file(tmp_path: Path, import_of: MakeImport, form: str) -> None:
    """Cut anywhere: an error, or (a stream between two batches) what is there."""
    table = pa.table({"input_ids": pa.array([[1, 2]] * 50)})
    path = tmp_path / "x"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with (pa.ipc.new_stream if form == "stream" else pa.ipc.new_file)(
            path, table.schema
        ) as writer:
            writer.write_table(table, max_chunksize=10)
    whole = path.read_bytes()
    told = 0
    for size in np.linspace(10, len(whole) - 9, 25).astype(int).tolist():
        path.write_bytes(whole[:size])
        source: Any = (ParquetFile if form == "parquet" else ArrowFile)(path, "input_ids")
        try:
            got = read_all(source)
        except UserError as e:
            assert str(path) in str(e) and "\n" not in str(e)
            told += 1
        else:
            assert form == "stream" and len(got) % 10 == 0
    assert told > 18


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(UserError, match="is a folder, but none that Dataset.save_to_disk has made"):
        find_data_sets([Tokenized(str(folder))])
    for state, message in (
        ("{", "state.json cannot be read"),
        ("[]", "is damaged: it is no JSON object"),
        ("{}", "has no list '_data_files'"),
        ('{"_data_files": []}', "it names no files of this folder"),
        ('{"_data_files": [{"filename": "../x"}]}', "it names no files of this folder"),
        ('{"_data_files": [7]}', "it names no files of this folder"),
        ('{"_data_files": [{"filename": "x.arrow"}]}', "x.arrow is not there, or no file"),
        (
            json.dumps({"_data_files": [{"filename": "x"}], "_indices_data_files": [{}]}),
            r"is a selection of rows \(by indices\); load it, flatten_indices\(\)",
        ),
    ):
        (folder / "state.json").write_text(state)
        with pytest.raises(UserError, match=message):
            find_data_sets([Tokenized(str(folder))])


def test_a_selection_that_datasets_has_saved(tmp_path: Path, import_of: MakeImport) -> None:
    folder = tmp_path / "data"
    data_set().select([5, 3, 4]).save_to_disk(folder)
    config = import_of(folder, shuffle=False)
    import_tokens(config)
    assert Manifest.load(config.out).inputs[0]["rows"] == 3
    export_megatron(ExportConfig(config.out_dir, str(tmp_path / "x"), quiet=True))
    assert judge.read(tmp_path / "x")[1] == by_judge(folder)


def test_offsets_that_point_anywhere(tmp_path: Path, import_of: MakeImport) -> None:
    table = pa.table({"input_ids": pa.array([[1, 2, 3]] * 50, pa.list_(pa.int32()))})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    data = bytearray(path.read_bytes())
    at = data.find(np.array([0, 3, 6, 9], "<i4").tobytes()) + 4 * 20
    for wrong in (1 << 30, 30, -5):
        data[at : at + 4] = np.array([wrong], "<i4").tobytes()
        path.write_bytes(data)
        with pytest.raises(UserError, match="a.arrow is damaged: .*make it again"):
            import_tokens(import_of(path))


def test_a_column_with_a_dot(tmp_path: Path, import_of: MakeImport) -> None:
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tok.ids": lists}), tmp_path / "a.parquet")
    assert read_all(ParquetFile(tmp_path / "a.parquet", "tok.ids")) == [[1, 2], [3]]
