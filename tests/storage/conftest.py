"""Stores to write into, and a store's patience made short."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from dataprep.storage import Remote, upload


@pytest.fixture(params=["s3", "memory"])
def root(request: pytest.FixtureRequest) -> Iterator[Remote]:
    """A folder of a store that holds nothing yet."""
    if request.param == "s3":
        yield request.getfixturevalue("s3").at / "root"
        return
    yield Remote(f"memory://{uuid.uuid4().hex}/root")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def put(root: Remote, tmp_path: Path) -> Callable[[str, bytes], Remote]:
    """Writes an object below the root."""

    def do(name: str, data: bytes) -> Remote:
        path = tmp_path / "to-upload"
        path.write_bytes(data)
        upload(path, root / name)
        return root / name

    return do
