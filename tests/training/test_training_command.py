"""The train command's view of `data`: a folder, or a list of folders with weights."""

from pathlib import Path

import pytest

from dataprep.errors import UserError
from pipelines.common import known_keys, parse_config
from training import Folder, TrainConfig


def parsed(tmp_path: Path, text: str, *flags: str) -> TrainConfig:
    path = tmp_path / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return parse_config(TrainConfig, ["--config", str(path), *flags], "train", "")


def test_a_folder_or_a_list_of_folders(tmp_path: Path) -> None:
    assert parsed(tmp_path, "{data: out, save_dir: run}").data == "out"
    mix = "save_dir: run\ndata: [{path: a, weight: 2.0}, {path: b}]\n"
    assert parsed(tmp_path, mix).data == [Folder("a", 2.0), Folder("b", 1.0)]
    assert parsed(tmp_path, mix, "--data", "c", "--reader=direct").data == "c"
    listed = parsed(tmp_path, mix, "--data", '[{"path": "c"}]')
    assert listed.data == [Folder("c")]
    assert {"data", "data.*.path", "data.*.weight"} <= known_keys(TrainConfig).keys()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("[{path: a, wieght: 2}]", "unknown key 'data.*.wieght'; did you mean 'data.weight'"),
        ("[a, b]", "each of data must be a section of keys, not 'a'"),
        ("{path: a}", "data must be a list of entries, not"),
        ("3", "data must be a list of entries, not 3"),
    ],
)
def test_what_is_wrong_in_a_list_is_named(tmp_path: Path, data: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        parsed(tmp_path, f"{{data: {data}, save_dir: run}}")
    assert told in str(error.value)
