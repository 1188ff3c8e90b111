"""Publishes cleaned logs to a directory on disk, which appears by a rename.

Files are written to a hidden directory beside the target, whose name cannot be guessed and which only its owner may enter.
They are fsynced and read back; renaming the directory is the last step. A killed run leaves only the hidden directory, which
the next run removes.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from compaction.errors import StorageError, UsageError
from compaction.fs.filesystem import DiskFileSystem, base_name, join, parent
from compaction.locking.mounts import is_mount_point
from compaction.names import segment_file
from compaction.output.publish import Publication, layout, require_target
from compaction.output.swap import SwapGroup

_STAGING = re.compile(r"[0-9a-f]{32}\.partial")


class LocalPublication(Publication):
    """See ``Publication``. Begin with :meth:`begin`."""

    def __init__(self, fs: DiskFileSystem, output_dir: str, staging: str, log_dirs: Sequence[str]) -> None:
        self._data = join(staging, "data")
        super().__init__(fs, fs, output_dir, layout(self._data, log_dirs))
        self._staging = staging
        self._lock = fs.lock(staging)

    @classmethod
    def begin(cls, fs: DiskFileSystem, output_dir: str, log_dirs: Sequence[str]) -> LocalPublication:
        """Prepare to publish to ``output_dir``, which must be empty or missing.

        :raises UsageError: it is neither, or is inside a log directory; two log directories have the same name
        :raises LockedError: another run is publishing there
        """
        output_dir = str(Path(output_dir).absolute())
        _check_target(fs, output_dir, log_dirs)
        above, stem = parent(output_dir), f".{base_name(output_dir)}."
        fs.mkdir(above)
        for name in fs.listdir(above):
            if name.startswith(stem) and _STAGING.fullmatch(name[len(stem) :]):
                _remove_unless_in_use(fs, join(above, name))
        staging = join(above, f"{stem}{uuid.uuid4().hex}.partial")
        fs.mkdir(staging, private=True)
        return cls(fs, output_dir, staging, log_dirs)

    def _adopt(self, target: str, group: SwapGroup) -> None:
        for written in group.files:
            name, final = (join(target, segment_file(group.base_offset, written.kind, end)) for end in (group.suffix, ""))
            self._fs.rename(name, final)
            self._sizes[final] = written.size

    def _appear(self) -> None:
        """:raises StorageError: a file that was written is missing or has another size"""
        for path, size in self._sizes.items():
            found = self._fs.stat(path)
            if found is None or found.size != size:
                hint = "nothing has appeared; check the disk, and what else writes to this directory, and run again"
                raise StorageError("file has changed since it was written", path=path, hint=hint)
        self._fs.fsync_dir(self._data)
        self._fs.rename(self._data, self._output_dir)
        self._fs.fsync_dir(parent(self._output_dir))
        self.abort()

    def abort(self) -> None:
        """Remove the hidden directory."""
        self._lock.release()
        self._fs.remove_tree(self._staging)


def _remove_unless_in_use(fs: DiskFileSystem, staging: str) -> None:
    """Remove a killed run's hidden directory: one that this user owns and whose lock is free.

    :raises LockedError: another run is publishing there
    """
    found = fs.stat(staging)
    if found is not None and found.is_dir and found.uid == os.geteuid():
        # a shared lock creates no file: somebody may have planted a link here
        fs.lock(staging, shared=True).release()
        fs.remove_tree(staging)


def _check_target(fs: DiskFileSystem, output_dir: str, log_dirs: Sequence[str]) -> None:
    """:raises UsageError: ``output_dir`` cannot be published to"""
    found = fs.stat(output_dir)
    if found is not None and (not found.is_dir or fs.listdir(output_dir)):
        raise UsageError("--output-dir exists and is not empty", path=output_dir, hint="name a new directory")
    if found is not None and is_mount_point(output_dir):
        hint = "name a new directory below it: the output appears by a rename, which a mount point refuses"
        raise UsageError("--output-dir is a mount point", path=output_dir, hint=hint)
    require_target(output_dir, log_dirs)
