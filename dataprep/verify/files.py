"""The files of an output folder against its manifest: all of them, and no others.

manifest.json            by its own checksum, when it is loaded
train/, eval/            data files and indexes, by the manifest's hashes
audit/rows/              the same (versions before 0.3 had none)
SHA256SUMS               says the same of these, and has the hashes of all others
mindformers.yaml         also by rendering it again: it names the folder it lies in
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from dataprep import manifest as manifests
from dataprep import mindformers, report, sums
from dataprep.errors import UserError
from dataprep.files import TMP
from dataprep.manifest import Manifest, Shard
from dataprep.storage import place
from dataprep.verify.verdict import Verdict
from dataprep.version import __version__

BLOCK = 8 << 20
REPAIR = "--repair cures it"
DATA = ("train/", "eval/", "audit/rows/")  # here nothing lies that the manifest does not name


@dataclass(frozen=True)
class Known:
    """What is known of a file."""

    sha256: str
    """"" when nobody says."""
    bytes: int | None = None
    """None when nobody says."""
    by: str = manifests.NAME
    """Who says it."""


@dataclass(frozen=True)
class Folder:
    """An output folder: what should lie in it."""

    path: Path
    manifest: Manifest
    sealed: dict[str, Known]
    """Files that the manifest knows: relative path -> what it says."""
    listed: dict[str, str]
    """SHA256SUMS: relative path -> hash; empty when it is missing or damaged."""
    damage: str
    """What is wrong with SHA256SUMS, or ""."""

    @property
    def old(self) -> bool:
        """Whether it was built by a version that hashed only the shards."""
        return not any(s.audit_sha256 for split in self.manifest.splits.values() for s in split)

    @property
    def others(self) -> dict[str, Known]:
        """Files that only SHA256SUMS knows."""
        return {
            name: Known(value, by=sums.NAME)
            for name, value in self.listed.items()
            if name not in self.sealed and not name.startswith(DATA) and _inside(name)
        }


def open_folder(out_dir: Path, manifest: Manifest) -> Folder:
    """Reads SHA256SUMS, and gathers what should lie in the folder.

    Raises UserError when the manifest names a file outside of it.
    """
    sealed = {}
    for shard in (shard for shards in manifest.splits.values() for shard in shards):
        if not _inside(shard.path):
            raise UserError(
                f"{out_dir / manifests.NAME} names the shard {shard.path!r}, outside of the "
                "folder; no build has made it: do not use it"
            )
        sealed[shard.path] = Known(shard.sha256, shard.bytes)
        sealed[f"{shard.path}.db"] = Known(shard.index_sha256)
        sealed[audit_path(shard)] = Known(shard.audit_sha256)
    listed, damage = {}, ""
    try:
        listed = sums.read_sums(out_dir)
        lines = "".join(f"{listed[name]}  {name}\n" for name in sorted(listed))
        if (out_dir / sums.NAME).read_bytes() != lines.encode():
            damage = f"{out_dir / sums.NAME} was changed: its lines are not as they were written"
    except UserError as e:
        damage = str(e)
    except OSError as e:
        damage = f"{out_dir / sums.NAME} cannot be read: {e.strerror or e}"
    return Folder(out_dir, manifest, sealed, listed, damage)


def audit_path(shard: Shard) -> str:
    """The table of audit/rows of a shard, relative to the output folder."""
    return f"audit/rows/{Path(shard.path).stem}.parquet"


def _inside(name: str) -> bool:
    """Whether a relative name stays in the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def strangers(folder: Folder) -> list[Path]:
    """Files in the folder that nobody names.

    Links to files are files; a link to a folder is entered only where a known file lies below.
    """
    known = {*folder.sealed, *folder.others, manifests.NAME, mindformers.NAME, sums.NAME}
    parents = {str(parent) for name in known for parent in Path(name).parents}

    def walk(inner: Path) -> Iterator[Path]:
        for found in sorted(inner.iterdir()):
            name = found.relative_to(folder.path).as_posix()
            if found.is_dir() and (name in parents or not found.is_symlink()):
                yield from walk(found)
            elif name not in known and (folder.listed or not _unlisted(name)):
                yield found

    return list(walk(folder.path))


def _unlisted(name: str) -> bool:
    """Whether a file belongs to every output folder, though without SHA256SUMS nobody names it."""
    return name in ("run.json", report.NAME) or bool(
        re.fullmatch(r"audit/removed/[^/]+\.parquet", name)
    )


def stranger_defects(folder: Folder) -> list[str]:
    """A line for each file that nobody names."""
    try:
        found = strangers(folder)
    except OSError as e:
        return [f"{e.filename} cannot be looked into: {e.strerror}"]
    return [
        f"{path} is unfinished, of a command that was killed; remove it"
        if path.name.endswith(TMP)
        else f"{path} is not in the manifest: renamed, or left by another run"
        for path in found
    ]


def file_defect(
    out_dir: Path, name: str, known: Known, tell: Callable[[float], None] | None = None
) -> str:
    """What is wrong with a file, or "". `tell` hears how much of it has been read, as 0..1."""
    path = out_dir / name
    try:
        if not path.is_file():
            return f"{path} is missing (renamed or deleted), and {known.by} names it"
        size = path.stat().st_size
        if known.bytes is not None and size != known.bytes:
            return f"{path} has {size:,} bytes, the manifest says {known.bytes:,}"
        if known.sha256 and hash_file(path, tell) != known.sha256:
            return f"{path} has changed bytes: its SHA-256 is not that of {known.by}"
    except OSError as e:
        return f"{path} cannot be read: {e.strerror or e}"
    return ""


def hash_file(path: Path, tell: Callable[[float], None] | None = None) -> str:
    """SHA-256 of a file (64 hex digits); `tell` hears how much of it has been read, as 0..1."""
    digest, buffer, done = sha256(), bytearray(BLOCK), 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while n := file.readinto(buffer):
            digest.update(memoryview(buffer)[:n])
            done += n
            if tell:
                tell(done / max(size, n))
    return digest.hexdigest()


def check_shard_files(
    out_dir: Path, shard: Shard, verdict: Verdict, tell: Callable[[float], None]
) -> bool:
    """True if data file and index are there with the right bytes.

    Others are not read: MindSpore may crash on a data file that does not match its index.
    """
    index = f"{shard.path}.db"
    data = file_defect(out_dir, shard.path, Known(shard.sha256, shard.bytes), tell)
    of_index = file_defect(out_dir, index, Known(shard.index_sha256))
    if of_index and not data:
        of_index += (
            f"; MindSpore cannot open the shard without its index, or says that the DB file does "
            f"not match; {REPAIR}"
        )
    verdict.defects.extend(line for line in (data, of_index) if line)
    return not data and not of_index


def check_other_files(folder: Folder, verdict: Verdict) -> None:
    """The form of manifest.json, SHA256SUMS, and the files that only it knows."""
    written = folder.path / manifests.NAME
    text = written.read_text(encoding="utf-8")
    if text != json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n":
        verdict.defects.append(f"{written} was changed: its spaces are not as they were written")
    path = folder.path / sums.NAME
    if folder.damage and folder.old and not path.exists():
        verdict.notes.append(
            "the folder is of a version that hashed only the shards: the content of audit/rows was "
            "checked, the bytes of the audit, run.json and report.html were not"
        )
    elif folder.damage:
        verdict.defects.append(folder.damage)
        if not folder.listed:
            verdict.notes.append(
                f"without {sums.NAME}, run.json, report.html and audit/removed were not checked"
            )
    for name, known in folder.sealed.items() if folder.listed else ():
        if known.sha256 and folder.listed.get(name) != known.sha256:
            verdict.defects.append(f"{path} has not the hash of {name} that the manifest has")
    for name in folder.listed:
        if not _inside(name):
            verdict.defects.append(f"{path} names {name!r}, outside of the folder")
    for name, known in folder.others.items():
        defect = file_defect(folder.path, name, known)
        if defect and name != mindformers.NAME:
            verdict.defects.append(defect)
    _check_mindformers(folder, verdict)


def mindformers_state(folder: Folder) -> tuple[str, str]:
    """("right", ""), ("missing", ""), ("moved", folder that it names) or ("changed", why).

    Of a data set without a train split it cannot be made: ("right", "").
    """
    if not folder.manifest.splits.get("train"):
        return "right", ""
    try:
        text = (folder.path / mindformers.NAME).read_bytes().decode("utf-8")
    except FileNotFoundError:
        return "missing", ""
    except (OSError, UnicodeDecodeError) as e:
        return "changed", f"it cannot be read ({e})"
    if text == mindformers.render(folder.manifest, folder.path.resolve()):
        return "right", ""
    named = re.search(r'^    dataset_dir: (".*")$', text, re.MULTILINE)
    try:
        built = json.loads(named[1]).removesuffix("/train") if named else ""
        if built and text == mindformers.render(folder.manifest, place(built)):
            return "moved", built
    except (ValueError, UserError):
        pass  # no name of a folder: changed
    return "changed", "its content is not what the manifest makes of it"


def _check_mindformers(folder: Folder, verdict: Verdict) -> None:
    """A file that names another folder, as after a move, is no defect; nor one of another version,
    if its hash is right."""
    path = folder.path / mindformers.NAME
    state, why = mindformers_state(folder)
    listed = folder.listed.get(mindformers.NAME)
    if state == "missing":
        where = verdict.notes if listed is None and not folder.damage else verdict.defects
        where.append(f"{path} is missing, which MindFormers would load; {REPAIR}")
        return
    wrong = (
        file_defect(folder.path, mindformers.NAME, Known(listed, by=sums.NAME)) if listed else ""
    )
    if wrong:
        verdict.defects.append(f"{wrong}; to edit it, copy it elsewhere; move it away and {REPAIR}")
    elif state == "moved":
        verdict.notes.append(
            f"{path} names the folder {why}, where this one was built: MindFormers would look "
            f"there; {REPAIR}"
        )
    elif state == "changed" and (listed or folder.manifest.versions.get("mindprep") != __version__):
        verdict.notes.append(f"{path} is not as mindprep {__version__} writes it: {why}")
    elif state == "changed":
        verdict.defects.append(f"{path} was changed: {why}; move it away and {REPAIR}")
