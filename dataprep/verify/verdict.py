"""What a check has found, and how it tells of its progress."""

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) of the data files, often."""


@dataclass
class Verdict:
    """What was checked and what is wrong."""

    defects: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why; and what a person should know."""
    repaired: list[str] = field(default_factory=list)
    """What `repair` has mended, before anything was checked."""
    shards: int = 0
    """Shards looked at."""
    unread: int = 0
    """Shards of these whose rows were not read: a defect says why."""
    rows: int = 0
    """Rows read."""
    tokens: int = 0
    """Tokens in those rows, without padding."""
    bytes: int = 0
    """Of the data files that were read."""
    seconds: float = 0.0
    reader: str = ""
    """Whose reader has read the rows."""


class Steps:
    """Progress through data files: half of a file's bytes when it is hashed, half when it is read.

    So the bar moves at one pace, and a file that is not read is done as well.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._begun = 0.0  # bytes of the files before this one
        self._size = 0

    def begin(self, size: int) -> None:
        """A file of this many bytes is next; the one before has ended."""
        self._begun += self._size
        self._size = size
        self._tell(0.0)

    def hashed(self, share: float) -> None:
        """This share (0..1) of the file has been hashed."""
        self._tell(share / 2)

    def read(self, share: float) -> None:
        """This share (0..1) of its rows has been read."""
        self._tell(0.5 + share / 2)

    def end(self) -> None:
        """The last file has ended."""
        self.begin(0)

    def _tell(self, share: float) -> None:
        if self._progress:
            self._progress(int(self._begun + share * self._size), self._total)
