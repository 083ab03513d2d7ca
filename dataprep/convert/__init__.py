"""Further doors: tokenized data into an output folder, and an output folder out to Megatron."""

from dataprep.convert.config import ImportConfig, Vocabulary
from dataprep.convert.export import ExportConfig, Exported, export_megatron
from dataprep.convert.ingest import import_tokens
from dataprep.convert.inputs import Tokenized

__all__ = [
    "ExportConfig",
    "Exported",
    "ImportConfig",
    "Tokenized",
    "Vocabulary",
    "export_megatron",
    "import_tokens",
]
