"""mindformers.yaml: sections that load an output folder in MindFormers, in its two modes.

Graph mode (MCore) finds files by walking a folder; PyNative mode lists them. Both ask for columns
by name and want `actual_seq_len` last. Key names: MindFormers 1.9 to 2.1.
"""

import json
from collections.abc import Callable

from dataprep.files import atomic_path
from dataprep.manifest import Manifest
from dataprep.storage import Place, Remote

NAME = "mindformers.yaml"


def write_mindformers(out_dir: Place) -> Callable[[Manifest, Place], None]:
    """A finishing step for `corpus.build`; paths in the file point below `out_dir`."""

    def write(manifest: Manifest, folder: Place) -> None:
        with atomic_path(folder / NAME) as tmp:
            tmp.write_text(render(manifest, out_dir), encoding="utf-8")

    return write


def render(manifest: Manifest, out_dir: Place) -> str:
    """The file's text: graph mode as live YAML, PyNative mode as a commented section."""
    columns = json.dumps(list(manifest.columns))
    strategy = ", ".join("[*dp, 1]" for _ in manifest.columns)
    folder = json.dumps(str(out_dir / "train"), ensure_ascii=False)
    files = json.dumps(manifest.files(out_dir, "train"), ensure_ascii=False)
    copied = ""
    if isinstance(out_dir, Remote):
        copied = (
            "# MindSpore reads local files only: copy the folder to each node, and write its path\n"
            "# there in place of the URL.\n"
        )
    eod = ""
    if "actual_seq_len" in manifest.columns:
        eod = (
            "#   model: {use_eod_attn_mask_compression: True, compressed_eod_mask_length: "
            f"{manifest.columns['actual_seq_len']}}}\n"
        )
    return f"""\
# Made by mindprep {manifest.versions.get("mindprep", "")}: {manifest.rows("train"):,} rows of \
{manifest.seq_length} tokens. Set batch_size and data_parallel to yours.
{copied}# Graph mode (use_legacy: False)
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
  input_columns: {columns}
  construct_args_key: {columns}
  batch_size: 1
  repeat: 1
  seed: 0
  num_parallel_workers: 8
  python_multiprocessing: False
  numa_enable: False
  drop_remainder: True
train_dataset_task:
  type: CausalLanguageModelDataset
  dataset_config: *train_dataset
# PyNative mode: use this section instead
#   train_dataset:
#     dataloader:
#       type: MindDataset
#       dataset_files: {files}
#       column_names: {columns}
#       shuffle: False
#     num_parallel_workers: 8
#     prefetch_size: 1
#     drop_remainder: True
{eod}"""
