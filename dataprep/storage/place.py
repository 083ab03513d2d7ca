"""Names of places: a path, or a URL with a path's ways of joining."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import fsspec

from dataprep.errors import UserError

_LOCAL, _WEB = ("file", "local"), ("http", "https")
_SAME = {"s3a": "s3", "gcs": "gs"}  # names of one thing would look like two places
_CHAIN = re.compile("::[a-z0-9+.-]+://")
_SECRET = re.compile("(sig|signature|token|key|secret|password)=", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Remote:
    """A URL, used like a path: names only, nothing here touches the store."""

    url: str
    """Without a slash at its end."""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str | Path) -> "Remote":
        return Remote(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The part after the last slash; "" for a bucket alone."""
        path = self.url.partition("://")[2]
        return path.rpartition("/")[2] if "/" in path else ""

    @property
    def parent(self) -> "Remote":
        """The place that this one lies in; a bucket, as the root of a disk, lies in itself."""
        return Remote(self.url.rpartition("/")[0]) if self.name else self

    def with_name(self, name: str) -> "Remote":
        """Another place in the same parent."""
        return self.parent / name

    def is_relative_to(self, other: "Place") -> bool:
        """Whether it lies in `other`, or is it."""
        return isinstance(other, Remote) and f"{self.url}/".startswith(f"{other.url}/")

    def relative_to(self, other: "Remote") -> str:
        """The rest of the name below `other`. Raises ValueError when it is not below it."""
        if not self.url.startswith(f"{other.url}/"):
            raise ValueError(f"{self.url!r} is not below {other.url!r}")
        return self.url.removeprefix(f"{other.url}/")


Place = Path | Remote


def is_url(text: str) -> bool:
    """Whether a text names a place by URL rather than by path."""
    return "://" in text


def place(text: str) -> Place:
    """The place that a text names.

    Raises UserError when it is a URL that nothing here can open.
    """
    if not is_url(text):
        return Path(text)
    scheme, _, rest = text.partition("://")
    if _CHAIN.search(text):
        raise UserError(f"{text!r} chains several URLs (::); give the files themselves")
    if scheme in _LOCAL:
        if not rest.startswith("/"):
            raise UserError(
                f"{text!r} names no absolute path; write {scheme}:///, or the path alone"
            )
        return Path(rest)  # not by urlsplit: # and ? are letters of a name here
    if not rest.strip("/"):
        raise UserError(f"{text!r} names no bucket or host")
    if scheme not in fsspec.available_protocols():
        raise UserError(
            f"{text!r} has an unknown scheme; known are s3://, gs://, az://, hdfs:// and the "
            "others of fsspec, or a path without scheme"
        )
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as e:
        cure = "pip install 'mindprep[s3]'" if scheme in ("s3", "s3a") else str(e)
        raise UserError(f"{text!r}: a package for {scheme}:// is missing: {cure}") from e
    try:
        parts = urlsplit(text)
        secret = parts.password or (scheme in _WEB and _SECRET.search(parts.query))
    except ValueError as e:
        raise UserError(f"{text!r} is not a URL: {e}") from e
    if secret:
        raise UserError(
            f"the {scheme}:// URL holds a password or a signature, which would be written into the "
            "manifest; give credentials by the environment"
        )
    return Remote(f"{_SAME.get(scheme, scheme)}://{rest}".rstrip("/"))


def absolute(text: str) -> Place:
    """The place that a text names, wherever it is read; links of a path are followed."""
    at = place(text)
    return at.resolve() if isinstance(at, Path) else at
