"""Tasks and receipts: a piece of work is done when its receipt says so, and never done twice.

    work/a/00003/cleaned.arrow      outputs, each written atomically
    work/a/00003/receipt.json       written last: fingerprint, size and hash of the outputs, result

The fingerprint names all that the outputs depend on: the inputs' identity, the configs of the
stages, the version of this package. A receipt with the same fingerprint, whose outputs are there,
means: skip. So a killed run resumes, and a changed config redoes what depends on it.

Work files are not flushed to disk, which would take longer than to make them. What a machine wrote
before it last started (or another machine) may have been lost in part: there, outputs are not
trusted by their size but read and compared with their hash.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import xxhash

from dataprep.errors import UserError
from dataprep.files import TMP, canonical_json, fingerprint, write_error, write_json
from dataprep.storage import AT_ONCE, Place, entry, is_url, place, read, remove
from dataprep.version import __version__

RECEIPT = "receipt.json"


class Work(Protocol):
    """What a task does: a picklable callable, usually a frozen dataclass of its parameters."""

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        """Writes outputs (into `folder`, or elsewhere), each atomically.

        Returns a JSON-able result and the paths of the outputs.
        """
        ...


@dataclass(frozen=True)
class Task:
    """One unit of work, of a size that a lost machine may cost."""

    name: str
    """For people: the pass and the input, e.g. "read data/en.jsonl"."""
    folder: Place
    """Where the receipt lies, and what the task keeps for later passes."""
    depends_on: Mapping[str, Any]
    """JSON-able: everything that the outputs depend on, under names that people know."""
    work: Work
    size: int = 1
    """For progress: bytes or another measure of effort."""

    @property
    def dependencies(self) -> dict[str, Any]:
        """depends_on, and the versions of this package and of Unicode (which decides what a letter
        is)."""
        versions = {"mindprep": __version__, "unicode": unicodedata.unidata_version}
        return {**self.depends_on, "version": versions}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the dependencies."""
        return fingerprint(self.dependencies)


def look(tasks: Sequence[Task]) -> list[tuple[dict[str, Any] | None, str]]:
    """Of each task its result, or None and why it has to be done: "new", what changed, or what is
    missing. Many are read at a time: a store or a network file system answers slowly."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [(None if why else _result(told), why) for told, why in pool.map(_check, tasks)]


def _check(task: Task) -> tuple[dict[str, Any], str]:
    """(receipt, ""), or why it does not count."""
    try:
        text = read(task.folder / RECEIPT)
    except OSError:  # a store that fails is told
        return {}, "new"
    try:
        receipt = dict(json.loads(text))
        if receipt["fingerprint"] != task.fingerprint:
            now = task.dependencies
            changed = ", ".join(differences(receipt["depends_on"], now)) or "the receipt"
            return receipt, f"changed: {changed}"
        outputs = {str(name): dict(told) for name, told in receipt["outputs"].items()}
        same_start = receipt["machine"] == machine_start() != ""
        dict(receipt["result"])
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return {}, "damaged receipt"  # it proves nothing: the task is redone
    for name, told in outputs.items():
        path = _output(task.folder, name)
        found = entry(path)
        if found is None or found.size != told.get("size"):
            return receipt, f"missing or cut short: {path}"
        if isinstance(path, Path) and not same_start and told.get("xxh3") != hash_file(path):
            return receipt, f"damaged: {path}"
    return receipt, ""


def _name(folder: Place, path: Place) -> str:
    """What a receipt calls an output: by its name in the folder, which may be moved or copied."""
    inside = f"{path}".startswith(f"{folder}/")
    return f"{path}"[len(f"{folder}/") :] if inside else f"{path}"


def _output(folder: Place, name: str) -> Place:
    return place(name) if name.startswith("/") or is_url(name) else folder / name


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Dotted names of the values that differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif canonical_json(before) != canonical_json(now):
        yield name


def run_task(task: Task) -> dict[str, Any]:
    """Does a task, unless its receipt shows it done; returns its result.

    An unexpected exception carries a note that names the task.
    """
    receipt, why = _check(task)
    if not why:
        return _result(receipt)
    try:
        remove(task.folder / RECEIPT)
        if isinstance(task.folder, Path):
            for left_over in task.folder.glob(f"*{TMP}"):  # of an attempt that was killed
                left_over.unlink(missing_ok=True)
    except OSError as e:
        raise write_error(task.folder, e) from e
    try:
        result, outputs = task.work(task.folder)
    except UserError:
        raise
    except Exception as e:
        e.add_note(f"while doing: {task.name}")
        raise
    receipt = {
        "fingerprint": task.fingerprint,
        "depends_on": task.dependencies,
        "machine": machine_start(),
        "outputs": {_name(task.folder, path): _seal(path) for path in outputs},
        "result": result,
    }
    write_json(task.folder / RECEIPT, receipt, durable=False)
    return _result(receipt)


def _result(receipt: dict[str, Any]) -> dict[str, Any]:
    """What the work returned, and what its outputs are known by."""
    return {**receipt["result"], "outputs": receipt["outputs"]}


def _seal(path: Place) -> dict[str, Any]:
    """What an output is known by: its size, and the hash of a local file (XXH3, 64 bits) or what a
    store calls its version."""
    found = entry(path)
    if found is None:
        raise UserError(f"{path} vanished while the run went on; run again")
    if isinstance(path, Path):
        return {"size": found.size, "xxh3": hash_file(path)}
    return {"size": found.size, "version": found.version}


def hash_file(path: Path) -> str:
    """XXH3 of a file: against damage, not against people."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@cache
def machine_start() -> str:
    """Names this start of this machine; "" where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
