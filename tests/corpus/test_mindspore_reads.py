"""MindSpore's own readers give back exactly what was packed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from dataprep.corpus import BuildConfig, BuildResult, Eval, Write, build
from dataprep.dedup.config import Dedup
from dataprep.engine import Engine
from dataprep.pack import Pack
from dataprep.readers import Input
from dataprep.tokens import Tokenize

VOCAB = 150_000


@pytest.fixture(scope="module")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of 150,000 words: "w70000" has id 70000."""
    vocab = {f"w{i}": i for i in range(VOCAB - 1)} | {"<|endoftext|>": VOCAB - 1}
    tok = tokenizers.Tokenizer(WordLevel(vocab, "w0"))
    tok.pre_tokenizer = WhitespaceSplit()
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tok.save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Ids of documents: short and long ones, ids above 65,535, and 30 of a single token."""
    rng = np.random.default_rng(3)
    long = [rng.integers(1, VOCAB - 1, n).tolist() for n in rng.integers(2, 60, 50)]
    return long + [[100_000 + i] for i in range(30)]


@pytest.fixture(scope="module")
def built(
    documents: list[list[int]], word_tokenizer: str, tmp_path_factory: pytest.TempPathFactory
) -> BuildResult:
    folder = tmp_path_factory.mktemp("reads")
    lines = [json.dumps({"text": " ".join(f"w{i}" for i in ids)}) for ids in documents]
    (folder / "in.jsonl").write_text("\n".join(lines))
    return build(
        BuildConfig(
            inputs=[Input(str(folder / "in.jsonl"))],
            tokenizer=Tokenize(word_tokenizer, add_eos=False),
            out_dir=str(folder / "out"),
            dedup=Dedup(method="exact"),
            eval=Eval(fraction=0),
            pack=Pack(seq_length=16, max_documents=8),
            write=Write(shards=2),
            engine=Engine(quiet=True),
        )
    )


def by_hand(built: BuildResult, documents: list[list[int]]) -> dict[str, dict[str, Any]]:
    """Each shard's columns, built in plain Python from audit/rows and the known ids."""
    import pyarrow.parquet as pq

    s, k, pad = 16, 8, built.manifest.tokenizer.pad_id
    out = {}
    for shard in built.manifest.splits["train"]:
        n = shard.rows
        want: dict[str, Any] = {
            "input_ids": [[pad] * s for _ in range(n)],
            "labels": [[-100] * s for _ in range(n)],
            "loss_mask": [[0] * s for _ in range(n)],
            "position_ids": [[0] * s for _ in range(n)],
            "actual_seq_len": [[] for _ in range(n)],
        }
        audit = built.out_dir / "audit/rows" / (Path(shard.path).stem + ".parquet")
        for p in pq.read_table(audit).to_pylist():
            ids = documents[p["source_row"]]
            for j in range(p["length"]):
                slot, token = p["start"] + j, p["token_start"] + j
                want["input_ids"][p["row"]][slot] = ids[token]
                want["position_ids"][p["row"]][slot] = j
                if token + 1 < len(ids):
                    want["labels"][p["row"]][slot] = ids[token + 1]
                    want["loss_mask"][p["row"]][slot] = 1
            if p["start"] + p["length"] < s:
                want["actual_seq_len"][p["row"]].append(p["start"] + p["length"])
        for ends in want["actual_seq_len"]:
            ends.extend([s] * (k - len(ends)))
        out[shard.path] = want
    return out


def test_mindspore_reads_what_was_packed(built: BuildResult, documents: list[list[int]]) -> None:
    import mindspore.dataset as ds
    from mindspore.mindrecord import FileReader

    seen: list[int] = []
    empty_masks = 0
    for path, want in by_hand(built, documents).items():
        file = str(built.out_dir / path)
        reader = FileReader(file)
        rows = list(reader.get_next())
        reader.close()
        data = ds.MindDataset([file], columns_list=list(want), shuffle=False)
        loaded = list(data.create_dict_iterator(num_epochs=1, output_numpy=True))
        assert len(rows) == len(loaded) == len(want["input_ids"])
        for i, (by_file_reader, by_dataset) in enumerate(zip(rows, loaded)):
            for name, column in want.items():
                assert by_file_reader[name].tolist() == column[i]
                assert by_dataset[name].tolist() == column[i]
                assert by_dataset[name].dtype == np.int32
            empty_masks += not any(want["loss_mask"][i])
            seen += [t for t in by_dataset["input_ids"].tolist() if t != VOCAB - 1]
    assert sorted(seen) == sorted(t for ids in documents for t in ids)
    assert max(seen) > 65_535
    assert empty_masks > 0


def test_all_shards_load_as_one_data_set(built: BuildResult) -> None:
    import mindspore.dataset as ds

    files = built.manifest.files(built.out_dir, "train")
    names = list(built.manifest.columns)
    data = ds.MindDataset(files, columns_list=names, shuffle=False, num_parallel_workers=2)
    assert data.get_dataset_size() == built.manifest.rows("train")
    assert data.get_col_names() == names
