"""SHA256SUMS: the hash of every other file of an output folder, as `sha256sum -c` reads them.

The manifest has the hashes of the shards and of what explains them. This file has them too, and
those of what may differ between equal data sets: the report, the run, the tables of removed
documents (one a task), and mindformers.yaml, which names the folder.
"""

import re
from collections.abc import Mapping

from dataprep.errors import UserError
from dataprep.files import atomic_path
from dataprep.manifest import NAME as MANIFEST
from dataprep.storage import Place, entry, read

NAME = "SHA256SUMS"
NOT_LISTED = (NAME, MANIFEST)  # the manifest has a checksum of its own, and is written last


def write_sums(folder: Place, hashes: Mapping[str, str]) -> None:
    """Writes the file. `hashes`: name in the folder, with forward slashes -> 64 hex digits."""
    with atomic_path(folder / NAME) as tmp:
        lines = (f"{hashes[name]}  {name}\n" for name in sorted(hashes))
        tmp.write_text("".join(lines), encoding="utf-8")


def read_sums(folder: Place) -> dict[str, str]:
    """Name -> hash. Raises UserError when the file is missing or a line of it is damaged."""
    path = folder / NAME
    try:
        text = read(path).decode()
    except FileNotFoundError as e:
        raise UserError(f"{path} is missing; without it the audit cannot be proved") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path} is damaged: {e}") from e
    out: dict[str, str] = {}
    for i, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        found = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if not found or found[2] in out:
            raise UserError(f"{path} is damaged: line {i} is not a hash and a new name")
        out[found[2]] = found[1]
    return out


def change_sum(folder: Place, name: str, sha256: str) -> None:
    """Notes the hash of a file that was made anew. A folder of a version before 0.3 has no list."""
    if entry(folder / NAME):
        write_sums(folder, {**read_sums(folder), name: sha256})
