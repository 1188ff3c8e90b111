"""The manifest of an output in an object store: written last, so that an output without one is known to be unfinished.

``MARKER`` is the first object of an output and goes when ``MANIFEST`` is there. Fields of the manifest (JSON): ``format`` 1;
``files``, a list of ``path`` (relative to the manifest), ``size`` in bytes, ``mtime_ms`` (the file's own time of last
modification, which a store does not keep) and ``etag`` (``null`` where the store has none).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property

from compaction.errors import CorruptLogError

MANIFEST = "_manifest.json"
MARKER = "_unfinished.json"
FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One file of an output."""

    path: str
    size: int
    mtime_ms: int
    etag: str | None = None


@dataclass(frozen=True)
class Manifest:
    """All files of an output, by path."""

    files: tuple[Entry, ...]

    @classmethod
    def parse(cls, data: bytes, path: str) -> Manifest:
        """From the bytes of the file at ``path``.

        :raises CorruptLogError: they are no manifest
        """
        try:
            document = json.loads(data)
            files = tuple(Entry(str(f["path"]), int(f["size"]), int(f["mtime_ms"]), f["etag"]) for f in document["files"])
            known = document["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            known, files = False, ()
        if not known:
            raise CorruptLogError(f"is no manifest of format {FORMAT}", path=path, hint="run the job that writes it again")
        return cls(files)

    def to_json(self) -> bytes:
        """The file's bytes."""
        files = [asdict(entry) for entry in sorted(self.files, key=lambda entry: entry.path)]
        return (json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n").encode()

    @cached_property
    def _by_path(self) -> dict[str, Entry]:
        return {entry.path: entry for entry in self.files}

    def mtime_ns(self, path: str, size: int) -> int | None:
        """A file's own time of last modification, if it is listed with this size."""
        entry = self._by_path.get(path)
        return None if entry is None or entry.size != size else entry.mtime_ms * 1_000_000


def marker(run: str) -> bytes:
    """The marker of an output that a run begins."""
    return (json.dumps({"format": FORMAT, "run": run}) + "\n").encode()


def run_of(data: bytes) -> str | None:
    """The run that a marker names."""
    try:
        return str(json.loads(data)["run"])
    except (ValueError, KeyError, TypeError):
        return None
