"""Where files are: a path of this machine, or a URL of an object store.

    place("out/demo")        -> Path       the system's own calls
    place("s3://bucket/out") -> Remote     any store that fsspec knows, with retries

What a store lacks is not imitated. There is no rename: an object appears whole when its upload
ends, so that an upload is all that atomic writing needs. There are no folders: a name is enough.
"""

from dataprep.storage.place import Place, Remote, absolute, is_url, place
from dataprep.storage.scratch import fetched, scratch_folder, staged
from dataprep.storage.store import (
    AT_ONCE,
    DISK_FULL,
    Entry,
    copy,
    download,
    entry,
    find,
    hasty,
    is_folder,
    match,
    open_reader,
    read,
    read_range,
    remove,
    remove_many,
    upload,
)

__all__ = [
    "AT_ONCE",
    "DISK_FULL",
    "Entry",
    "Place",
    "Remote",
    "absolute",
    "copy",
    "download",
    "entry",
    "fetched",
    "find",
    "hasty",
    "is_folder",
    "is_url",
    "match",
    "open_reader",
    "place",
    "read",
    "read_range",
    "remove",
    "remove_many",
    "scratch_folder",
    "staged",
    "upload",
]
