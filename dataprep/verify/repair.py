"""--repair: what can be mended without a build, each step proved by the manifest's hashes.

    a file renamed inside of the folder       gets its name back
    a missing or changed index                is made again from its data file
    mindformers.yaml missing, or of before a  is written again
    move of the folder

Nothing else is touched: a data file is never written, and a file that the manifest does not know
is left to its owner.
"""

import hashlib
import os
from pathlib import Path

from dataprep import mindformers
from dataprep.errors import UserError
from dataprep.files import atomic_path, write_error
from dataprep.manifest import Shard
from dataprep.mindrecord import rebuild_index
from dataprep.sums import change_sum
from dataprep.verify.files import (
    Folder,
    Known,
    file_defect,
    hash_file,
    mindformers_state,
    strangers,
)
from dataprep.verify.verdict import Verdict


def repair_folder(folder: Folder, verdict: Verdict) -> None:
    """Mends an output folder; tells what in `verdict`.

    Raises UserError when the folder cannot be written.
    """
    _bring_back(folder, verdict)
    for shards in folder.manifest.splits.values():
        for shard in shards:
            _rebuild_index(folder.path, shard, verdict)
    state, _ = mindformers_state(folder)
    path = folder.path / mindformers.NAME
    if (
        state == "right"
        and path.name in folder.listed
        and folder.listed[path.name] != hash_file(path)
    ):
        change_sum(folder.path, path.name, hash_file(path))  # an earlier repair was killed here
        verdict.repaired.append(f"{path}: its hash is noted in SHA256SUMS")
    # Its hash must be noted too, which a damaged list does not allow.
    if state in ("missing", "moved") and (folder.listed or folder.old):
        text = mindformers.render(folder.manifest, folder.path.resolve()).encode("utf-8")
        with atomic_path(path) as tmp:
            tmp.write_bytes(text)
        change_sum(folder.path, mindformers.NAME, hashlib.sha256(text).hexdigest())
        verdict.repaired.append(f"{path}: written again, it was {state}")


def _bring_back(folder: Folder, verdict: Verdict) -> None:
    """Renames files that the manifest does not know by name, but by content."""
    every = {**folder.sealed, **folder.others}
    missing = {
        name: known
        for name, known in every.items()
        if known.sha256 and not os.path.lexists(folder.path / name)
    }
    try:
        for path in strangers(folder) if missing else []:
            size = path.lstat().st_size
            fit = [name for name, known in missing.items() if known.bytes in (None, size)]
            if not fit or path.is_symlink() or not path.is_file():
                continue
            digest = hash_file(path)
            name = next((name for name in fit if missing[name].sha256 == digest), None)
            if name is None:
                continue
            (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, folder.path / name)
            del missing[name]
            verdict.repaired.append(f"{folder.path / name}: renamed back from {path}")
    except OSError as e:
        raise write_error(Path(e.filename2 or e.filename or folder.path), e) from e


def _rebuild_index(out_dir: Path, shard: Shard, verdict: Verdict) -> None:
    """Makes a missing or changed index again, if the data file is what the manifest says."""
    name = f"{shard.path}.db"
    wrong = file_defect(out_dir, name, Known(shard.index_sha256))
    if not wrong or file_defect(out_dir, shard.path, Known(shard.sha256, shard.bytes)):
        return
    try:
        content = rebuild_index(out_dir / shard.path)
    except UserError as e:
        verdict.defects.append(f"{out_dir / name} cannot be made again: {e}")
        return
    if hashlib.sha256(content).hexdigest() != shard.index_sha256:
        verdict.defects.append(
            f"{out_dir / name} cannot be made again: made from its data file it has another "
            "SHA-256 than the manifest says; copy it from a good copy"
        )
        return
    with atomic_path(out_dir / name) as tmp:
        tmp.write_bytes(content)
    verdict.repaired.append(f"{out_dir / name}: made again from its data file")
