"""The one exception that users see.

Every expected failure (bad input, bad config, a full disk) ends as a `UserError`: one clear line
with the file, row or key, the cause and the cure. The command line prints it and exits with 2.
Everything else is a defect of this program and keeps its traceback.
"""


def printable(text: str) -> str:
    """One line for a terminal: names and records may hold newlines or escape sequences."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class UserError(Exception):
    """An expected failure, told in one line: what, where, why, and what to do about it."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))

    def __reduce__(self) -> tuple[type["UserError"], tuple[str]]:
        return type(self), (str(self),)


class Unreadable(UserError):
    """A file that is there and cannot be read now, which says nothing about what it holds."""
