"""The output folder: whose it is, and how it appears.

A local one grows beside its place and is renamed into it. A store has no rename: the finished
objects are copied into their place within the store, manifest.json last. While an earlier output is
replaced there, its manifest is away, so that nobody takes half of two for one.
"""

import glob
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dataprep.corpus.lock import LOCK, Held
from dataprep.engine.task import differences
from dataprep.errors import UserError
from dataprep.files import (
    TMP,
    canonical_json,
    read_json,
    sha256_file,
    sync,
    unfinished,
    write_error,
    write_json,
)
from dataprep.manifest import NAME, Manifest
from dataprep.storage import (
    AT_ONCE,
    Place,
    Remote,
    copy,
    entry,
    fetched,
    find,
    remove,
    remove_many,
)
from dataprep.sums import NOT_LISTED, write_sums

RUN = "run.json"  # whose output this is: the identity of the run
ROWS, REMOVED = "audit/rows", "audit/removed"

Identity = dict[str, Any]


def check_aside(out: Place) -> None:
    """Raises UserError when something else has the name that an earlier output is moved to."""
    if isinstance(out, Path):
        old = _aside(out)
        if old.exists() and not (old / NAME).is_file():
            raise UserError(f"{old} is in the way and not an output folder; move or remove it")


def recover(out: Place) -> None:
    """Ends what a run killed while it published has begun: an earlier output comes back, or goes.

    Only for who holds the lock.
    """
    if isinstance(out, Remote):
        return
    old = _aside(out)
    for left_over in out.parent.glob(f"{glob.escape(old.name)}.*{TMP}"):
        shutil.rmtree(left_over)
    if old.exists() and out.exists():
        _discard(old)
    elif old.exists():
        os.replace(old, out)


def _aside(out: Path) -> Path:
    """Where an earlier output waits while the new one takes its place."""
    return out.with_name(out.name + ".replaced")


def _discard(old: Path) -> None:
    """Removes an output; a kill on the way leaves a name that says so."""
    left_over = unfinished(old)
    os.replace(old, left_over)
    shutil.rmtree(left_over)


def existing(out: Place, identity: Identity, overwrite: bool) -> Manifest | None:
    """The manifest of the same run if it is complete; None when there is work to do.

    Raises UserError when the folder holds something else and `overwrite` is off.
    """
    if _is_empty(out):
        return None
    if isinstance(out, Remote) and not entry(out / NAME) and entry(out / RUN):
        # Killed while it was published: its parts are in building, or made again.
        if overwrite or _is(out / RUN, identity):
            return None
        raise UserError(
            f"out_dir: {out} holds a part of another run, killed while it published; finish that "
            "one, choose another out_dir, or set overwrite: true"
        )
    try:
        manifest = Manifest.load(out)
        same = _is(out / RUN, identity)
        missing = _missing(out, manifest)
    except UserError as e:
        if overwrite and entry(out / NAME):
            return None
        raise UserError(f"out_dir: {e}. Choose another out_dir") from e
    if same and not missing:
        return manifest
    if overwrite:
        return None
    what = f"is damaged: {missing} is missing or cut short"
    if not same:
        names = list(differences(read_json(out / RUN), identity))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        what = f"holds another run (different: {', '.join(names[:4])}{more})"
    raise UserError(
        f"out_dir: {out} {what}; choose another out_dir, or set overwrite: true to replace it"
    )


def _is(run: Place, identity: Identity) -> bool:
    return canonical_json(read_json(run)) == canonical_json(identity)


def _is_empty(out: Place) -> bool:
    """Whether nothing is in the way of an output."""
    if isinstance(out, Path):
        return not out.exists() or (out.is_dir() and not any(out.iterdir()))
    return not find(out)


def _missing(out: Place, manifest: Manifest) -> str:
    """The first file of an output folder that is not there whole, or ""."""
    sizes = {str(path): found.size for path, found in find(out).items()}
    for shard in (shard for split in manifest.splits.values() for shard in split):
        rows = f"{ROWS}/{Path(shard.path).stem}.parquet"
        if sizes.get(f"{out}/{shard.path}") != shard.bytes:
            return shard.path
        for name in (f"{shard.path}.db", rows):
            if f"{out}/{name}" not in sizes:
                return name
    return "" if any(name.startswith(f"{out}/{REMOVED}/") for name in sizes) else REMOVED


def make_folders(folders: Iterable[Place]) -> None:
    """Makes folders, and shows that they can be written. Raises UserError where they cannot."""
    for folder in folders:
        if isinstance(folder, Remote):
            probe = folder / f".writable-{uuid.uuid4().hex}"
            write_json(probe, {})
            remove(probe)
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            local = unfinished(folder / "writable")
            local.touch()
            local.unlink()
        except OSError as e:
            raise write_error(folder, e) from e


def own(building: Place, identity: Identity) -> None:
    """Makes the growing output this run's: what another run has left there is removed.

    Raises UserError when the folder is nobody's and not empty.
    """
    owner = building / RUN
    if isinstance(building, Path):
        for left_over in building.glob(f"*{TMP}"):  # of a run that was killed: we hold the lock
            left_over.unlink()
    others = [path for path in _children(building) if path.name not in (LOCK, RUN)]
    owned = entry(owner) is not None
    if others and not owned:
        raise UserError(f"{building} holds files that no run has made; move or remove it")
    if owned:
        try:
            if _is(owner, identity):
                return
        except UserError:
            pass  # half of a file: of a run that is not this one, for all we know
    for path in others:
        if isinstance(path, Path) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            remove(path)
    write_json(owner, identity)


def _children(folder: Place) -> Iterable[Place]:
    return folder.iterdir() if isinstance(folder, Path) else find(folder)


def tidy(building: Place, out: Place, identity: Identity) -> None:
    """Removes what this run has left beside its complete output, if it is this run's."""
    if isinstance(out, Path):
        (out / LOCK).unlink(missing_ok=True)  # of a run killed in the moment it was published
    if entry(building / RUN) is None or not _is(building / RUN, identity):
        return
    if isinstance(building, Path):
        shutil.rmtree(building)
    else:
        _remove_building(building, find(building))


def publish(
    building: Place,
    out: Place,
    manifest: Manifest,
    outputs: Mapping[str, Mapping[str, Any]],
    held: Sequence[Held],
) -> None:
    """Puts a finished output into its place.

    `outputs`: names of its rows and shards, and what each is known by; `held`: our folders.
    """
    found = {str(path)[len(str(building)) + 1 :]: told for path, told in find(building).items()}
    for name in found:
        if name.startswith(("train/", "eval/", f"{ROWS}/")) and name not in outputs:
            remove(building / name)  # unfinished, of an attempt that was killed
    lost = min({*outputs, RUN} - found.keys(), default="")
    if lost:
        raise UserError(f"{building}/{lost} vanished while the run went on; run again")
    for name, told in outputs.items():
        now = found[name]
        if now.size != told["size"] or told.get("version", now.version) != now.version:
            raise UserError(f"{building}/{name} was written by another run as well; run again")
    write_sums(building, _sums(building, manifest))
    manifest.save(building)
    if isinstance(building, Remote):
        assert isinstance(out, Remote)
        _copy(building, out, held)
    else:
        assert isinstance(out, Path)
        _rename(building, out)


def _sums(building: Place, manifest: Manifest) -> dict[str, str]:
    """Name -> SHA-256 of all files but the manifest. Shards were hashed when they were written."""
    out = {}
    for shard in (shard for split in manifest.splits.values() for shard in split):
        out[shard.path] = shard.sha256
        out[f"{shard.path}.db"] = shard.index_sha256
        out[f"{ROWS}/{Path(shard.path).stem}.parquet"] = shard.audit_sha256
    for path in find(building):
        name = str(path)[len(str(building)) + 1 :]
        if name not in (*out, *NOT_LISTED, LOCK):
            with fetched([path]) as (local,):
                out[name] = sha256_file(local)
    return out


def _rename(building: Path, out: Path) -> None:
    """The lock goes along: until the folder has its name, nobody else may make one beside it."""
    old = _aside(out)
    try:
        if out.exists():
            os.replace(out, old)
        os.replace(building, out)
        sync(out.parent)
        (out / LOCK).unlink(missing_ok=True)
        if old.exists():
            _discard(old)
    except OSError as e:
        raise write_error(out, e) from e


def _copy(building: Remote, out: Remote, held: Sequence[Held]) -> None:
    """Manifest away, then whose it will be, then all else, the manifest last."""

    def still_ours() -> None:
        for lock in held:
            lock.check()

    new = find(building)
    names = {path.relative_to(building) for path in new if isinstance(path, Remote)}
    old = find(out)
    still_ours()
    try:
        remove(out / NAME)
        copy(building / RUN, out / RUN)
        still_ours()
        remove_many(path for path in old if path != out / RUN)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rest = names - {NAME, RUN, LOCK}
            list(pool.map(lambda name: copy(building / name, out / name), rest))
        still_ours()
        copy(building / NAME, out / NAME)
    except FileNotFoundError as e:
        raise UserError(f"a part of {building} vanished while it was copied; run again") from e
    _remove_building(building, new)


def _remove_building(building: Remote, files: Iterable[Place]) -> None:
    """Whose it is goes last: until then, whoever finds a part of it knows. The lock is its
    holder's to remove."""
    remove_many(path for path in files if path.name not in (RUN, LOCK))
    remove(building / RUN)
