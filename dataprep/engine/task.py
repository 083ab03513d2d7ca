"""Tasks and receipts: a piece of work is done when its receipt says so, and never done twice.

    work/a/00003/cleaned.arrow      outputs, each written atomically
    work/a/00003/receipt.json       written last: fingerprint, sizes of the outputs, result

The fingerprint names all that the outputs depend on: the inputs' identity, the configs of the
stages, the version of this package. A receipt with the same fingerprint, whose outputs are there,
means: skip. So a killed run resumes, and a changed config redoes what depends on it.
"""

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dataprep.errors import UserError
from dataprep.files import fingerprint, read_json, write_json
from dataprep.version import __version__

RECEIPT = "receipt.json"


class Work(Protocol):
    """What a task does: a picklable callable, usually a frozen dataclass of its parameters."""

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        """Writes outputs (into `folder`, or elsewhere), each atomically.

        Returns a JSON-able result and the paths of the outputs.
        """
        ...


@dataclass(frozen=True)
class Task:
    """One unit of work, of a size that a lost machine may cost."""

    name: str
    """For people: the pass and the input, e.g. "read data/en.jsonl"."""
    folder: Path
    """Where the receipt lies, and what the task keeps for later passes."""
    depends_on: Any
    """JSON-able: everything that the outputs depend on."""
    work: Work
    size: int = 1
    """For progress: bytes or another measure of effort."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all the outputs depend on, the versions of this package and of Unicode (which
        decides what a letter is) included."""
        return fingerprint([__version__, unicodedata.unidata_version, self.depends_on])


def receipt_of(task: Task) -> dict[str, Any] | None:
    """The result of a task that is done already, else None."""
    path = task.folder / RECEIPT
    if not path.is_file():
        return None
    try:
        receipt = read_json(path)
        done = receipt["fingerprint"] == task.fingerprint and all(
            Path(file).is_file() and Path(file).stat().st_size == size
            for file, size in receipt["outputs"].items()
        )
        return dict(receipt["result"]) if done else None
    except (UserError, KeyError, TypeError, AttributeError):
        return None  # a damaged receipt proves nothing: the task is redone


def run_task(task: Task) -> dict[str, Any]:
    """Does a task, unless its receipt shows it done; returns its result.

    An unexpected exception carries a note that names the task.
    """
    done = receipt_of(task)
    if done is not None:
        return done
    (task.folder / RECEIPT).unlink(missing_ok=True)
    try:
        result, outputs = task.work(task.folder)
    except UserError:
        raise
    except Exception as e:
        e.add_note(f"while doing: {task.name}")
        raise
    sizes = {str(path): path.stat().st_size for path in outputs}
    write_json(
        task.folder / RECEIPT,
        {"fingerprint": task.fingerprint, "outputs": sizes, "result": result},
    )
    return result
