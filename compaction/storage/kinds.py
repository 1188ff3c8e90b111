"""The kinds of storage, and the capabilities in which they differ.

The syntax of a path decides the kind, in ``storage_of`` alone. Other code asks the kind for the capability that it needs.
"""

from __future__ import annotations

import re
from pathlib import Path

#: the longest scheme and "://"
_HEAD = 24


class Storage:
    """Stores of objects, and remote file systems: URIs.

    :cvar renames: a rename is atomic: logs are changed in place, and an output appears by a rename, not by a manifest
    :cvar locks: brokers and runs lock log directories
    :cvar appears_whole: a file appears when it is closed, complete and durable; else it can be read while it is written, may
        have a torn tail, and is durable once it is flushed
    :cvar attributes: files have modes and owners, and keep their modification times
    :cvar round_trips: each call is a request over a network
    :cvar versions: what was replaced or removed may be kept as an earlier version
    :cvar finite: free space is limited, and known
    """

    renames, locks, appears_whole, attributes = False, False, True, False
    round_trips, versions, finite = True, True, False

    def normal(self, path: str) -> str:
        """One spelling of a path, links not followed."""
        return path.rstrip("/")

    def resolved(self, path: str) -> str:
        """An absolute path, links resolved."""
        return path.rstrip("/")

    def parent(self, path: str) -> str:
        """The directory that holds a path; the root of a store itself."""
        return path.rstrip("/").rpartition("/")[0] if split(path)[1] else path

    def as_java(self, path: str) -> str:
        """A path as Java prints it."""
        return path.rstrip("/")

    def absolute(self, path: str, working_dir: str) -> str:
        return path


class _Disk(Storage):
    """Files of this machine, or of a mounted shared disk."""

    renames, locks, appears_whole, attributes = True, True, False, True
    round_trips, versions, finite = False, False, True

    def normal(self, path: str) -> str:
        return str(Path(path))

    def resolved(self, path: str) -> str:
        return str(Path(path).resolve())

    def parent(self, path: str) -> str:
        return str(Path(path).parent)

    def as_java(self, path: str) -> str:
        return re.sub("/+", "/", path).rstrip("/") or "/"

    def absolute(self, path: str, working_dir: str) -> str:
        return path if path.startswith("/") else f"{working_dir.rstrip('/')}/{path}"


#: the files of exports, by addresses ``LAYOUT+URI``, are like objects
DISK, OBJECTS, EXPORTS = _Disk(), Storage(), Storage()


def split(uri: str) -> tuple[str, str]:
    """``SCHEME://AUTHORITY`` of a URI, and its key without a leading slash."""
    start = uri.index("://") + 3
    end = uri.find("/", start)
    return (uri, "") if end < 0 else (uri[:end], uri[end + 1 :])


def storage_of(path: str) -> Storage:
    """The storage of a path or URI; ``uri.parse_uri`` turns ``file:`` URIs into paths."""
    if path.startswith("/") or "://" not in path[:_HEAD]:
        return DISK
    return EXPORTS if "+" in path.partition("://")[0] else OBJECTS
