"""mindformers.yaml: sections that load an output folder in MindFormers, in its modes.

    mindformers, a list     graph mode (MCore), as live YAML, and PyNative mode, as a comment
    legacy, legacy_labels   use_legacy: True
    compact                 none: MindFormers cannot derive what these rows leave out

Graph mode finds files by walking a folder; PyNative mode lists them. Both ask for columns by name
and want `actual_seq_len` last. Key names: MindFormers 1.9 to 2.1.
"""

import json
from collections.abc import Callable

from dataprep.files import atomic_path
from dataprep.manifest import Manifest
from dataprep.storage import Place, Remote

NAME = "mindformers.yaml"
_COMPACT = """\
# Rows of the compact preset leave out what follows from them, and MindFormers cannot derive it.
# mindprep's own loader reads them; for MindFormers build with write.columns: mindformers, from the
# same work_dir: only the shards are written anew.
"""
_LEGACY = """\
# These rows hold tokens only. The model makes its own targets of them: it also learns the first
# token of a document from the end of the one before, and masks padding by pad_token_id. With
# write.columns: legacy_labels the targets are ours.
"""


def write_mindformers(out_dir: Place) -> Callable[[Manifest, Place], None]:
    """A finishing step for `corpus.build`; paths in the file point below `out_dir`."""

    def write(manifest: Manifest, folder: Place) -> None:
        with atomic_path(folder / NAME) as tmp:
            tmp.write_text(render(manifest, out_dir), encoding="utf-8")

    return write


def render(manifest: Manifest, out_dir: Place) -> str:
    """The file's text for a data set that lies in `out_dir`."""
    out = (
        f"# Made by mindprep {manifest.versions.get('mindprep', '')}: "
        f"{manifest.rows('train'):,} rows of {manifest.seq_length} tokens.\n"
    )
    if manifest.preset == "compact":
        return out + _COMPACT
    out += "# In a copy of this, set data_parallel and batch_size to yours.\n"
    if isinstance(out_dir, Remote):
        out += (
            "# MindSpore reads local files only: copy the folder to each node, and write its path\n"
            "# there in place of the URL.\n"
        )
    if manifest.preset.startswith("legacy"):
        return out + _legacy(manifest, out_dir)
    return out + _graph_mode(manifest, out_dir) + _pynative_mode(manifest, out_dir)


def _legacy(manifest: Manifest, out_dir: Place) -> str:
    note = _LEGACY if manifest.preset == "legacy" else ""
    return (
        f"{note}# Graph mode, use_legacy: True; model_config: {{input_sliced_sig: False, "
        f"seq_length: {manifest.seq_length}}}\n{_train_dataset(manifest, out_dir, '')}"
    )


def _graph_mode(manifest: Manifest, out_dir: Place) -> str:
    arguments = f"  construct_args_key: {_columns(manifest)}\n"
    body = _train_dataset(manifest, out_dir, arguments)
    return f"# Graph mode, use_legacy: False; seq_length: {manifest.seq_length}\n{body}"


def _train_dataset(manifest: Manifest, out_dir: Place, arguments: str) -> str:
    strategy = ", ".join("[*dp, 1]" for _ in manifest.columns)
    folder = json.dumps(str(out_dir / "train"), ensure_ascii=False)
    return f"""\
parallel_config:
  data_parallel: &dp 1
parallel:
  full_batch: False
  dataset_strategy: [{strategy}]
train_dataset: &train_dataset
  data_loader:
    type: MindDataset
    dataset_dir: {folder}
    shuffle: False
  input_columns: {_columns(manifest)}
{arguments}  batch_size: 1{_one_row(manifest)}
  repeat: 1
  seed: 0
  num_parallel_workers: 1  # more, up to the cores of the machine, where this is too slow
  python_multiprocessing: False
  numa_enable: False
  drop_remainder: True
train_dataset_task:
  type: CausalLanguageModelDataset
  dataset_config: *train_dataset
"""


def _pynative_mode(manifest: Manifest, out_dir: Place) -> str:
    files = json.dumps(manifest.files(out_dir, "train"), ensure_ascii=False)
    eod = ""
    if "actual_seq_len" in manifest.columns:
        eod = (
            "#   model: {use_eod_attn_mask_compression: True, compressed_eod_mask_length: "
            f"{manifest.columns['actual_seq_len']}}}\n"
        )
    return f"""\
# PyNative mode: use this section instead
#   train_dataset:
#     dataloader:
#       type: MindDataset
#       dataset_files: {files}
#       column_names: {_columns(manifest)}
#       shuffle: False
#     num_parallel_workers: 1
#     prefetch_size: 1
#     drop_remainder: True
{eod}"""


def _one_row(manifest: Manifest) -> str:
    """MindFormers 1.9 flattens `actual_seq_len` of a batch in graph mode, without an offset for the
    rows after the first."""
    if "actual_seq_len" not in manifest.columns:
        return ""
    return "  # stays 1: the ends in actual_seq_len count from their row's start"


def _columns(manifest: Manifest) -> str:
    return json.dumps(list(manifest.columns))
