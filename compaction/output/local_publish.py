"""Publishes cleaned logs to a directory on disk, which appears by a rename.

Files are written to a hidden directory beside the target, whose name cannot be guessed and which only its owner may enter.
They are fsynced and read back; renaming the directory is the last step. A killed run leaves only the hidden directory, which
the next run removes.

An earlier output is replaced by one system call that exchanges the two names. If the file system has none, the earlier one is
renamed to a second hidden name first; if a run is killed between these two renames, the next one renames it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compaction.errors import StorageError, UsageError
from compaction.fs.durable import write_verified
from compaction.fs.filesystem import DiskFileSystem, join, parent
from compaction.fs.local import LocalFileSystem
from compaction.locking.mounts import is_mount_point
from compaction.names import segment_file
from compaction.output.finished import FINISHED, RETIRED, STAGED, hidden_name, remove_leftovers, require_replaceable
from compaction.output.publish import NEW_OUTPUT, Goal, Publication, layout, require_target
from compaction.output.swap import SwapGroup
from compaction.stores.manifest import Entry, Manifest


class LocalPublication(Publication):
    """See ``Publication``. Begin with :meth:`begin`."""

    def __init__(self, fs: DiskFileSystem, output_dir: str, staging: str, log_dirs: Sequence[str], goal: Goal) -> None:
        self._data = join(staging, "data")
        super().__init__(fs, fs, output_dir, layout(self._data, log_dirs), goal)
        self._local, self._staging = fs, staging
        self._lock = fs.lock(staging)

    @classmethod
    def begin(
        cls, fs: DiskFileSystem, output_dir: str, log_dirs: Sequence[str], goal: Goal = NEW_OUTPUT
    ) -> LocalPublication:
        """Prepare to publish to ``output_dir``, which must be empty or missing, or an earlier output to be replaced.

        :raises UsageError: it is none of these, or is inside a log directory; two log directories have the same name
        :raises LockedError: another run is publishing there, or a broker uses the earlier output
        """
        output_dir = str(Path(output_dir).absolute())
        require_target(output_dir, log_dirs)
        remove_leftovers(fs, output_dir)
        _check_target(fs, output_dir, replace=goal.replace)
        fs.mkdir(parent(output_dir))
        staging = hidden_name(output_dir, STAGED)
        fs.mkdir(staging, private=True)
        return cls(fs, output_dir, staging, log_dirs, goal)

    def _adopt(self, target: str, group: SwapGroup) -> None:
        for written in group.files:
            name, final = (join(target, segment_file(group.base_offset, written.kind, end)) for end in (group.suffix, ""))
            self._fs.rename(name, final)
            self._sizes[final], self._hashes[final] = written.size, written.digest

    def _appear(self) -> None:
        """:raises StorageError: a file that was written is missing or has another size"""
        for path, size in self._sizes.items():
            found = self._fs.stat(path)
            if found is None or found.size != size:
                hint = "nothing has appeared; check the disk, and what else writes to this directory, and run again"
                raise StorageError("file has changed since it was written", path=path, hint=hint)
        if self._goal.call is not None:
            write_verified(self._fs, join(self._data, FINISHED), self._record())
        self._fs.fsync_dir(self._data)
        if self._goal.replace and self._fs.stat(self._output_dir) is not None and self._fs.listdir(self._output_dir):
            self._replace()
        else:
            self._fs.rename(self._data, self._output_dir)
            self._fs.fsync_dir(parent(self._output_dir))
        self.abort()

    def _record(self) -> bytes:
        start = len(self._data) + 1
        entries = (Entry(path[start:], size, 0, None, self._hashes[path]) for path, size in self._sizes.items())
        return Manifest(tuple(entries), None, None, self._goal.call).to_json()

    def _replace(self) -> None:
        """Put the output in the place of an earlier one, and remove that.

        :raises UsageError: the earlier one has changed since the run began
        :raises StorageError: the file system refused; one of the two is in place, and the next run removes the other
        """
        output_dir = self._output_dir
        require_replaceable(self._local, output_dir)
        retired = hidden_name(output_dir, RETIRED)
        if isinstance(self._local, LocalFileSystem) and self._local.exchange(self._data, output_dir):
            self._fs.rename(self._data, retired)
        else:
            self._fs.rename(output_dir, retired)
            try:
                self._fs.rename(self._data, output_dir)
            except StorageError:
                self._fs.rename(retired, output_dir)
                raise
        self._fs.fsync_dir(parent(output_dir))
        self._fs.remove_tree(retired)

    def abort(self) -> None:
        """Remove the hidden directory."""
        self._lock.release()
        self._fs.remove_tree(self._staging)


def _check_target(fs: DiskFileSystem, output_dir: str, *, replace: bool) -> None:
    """:raises UsageError: ``output_dir`` cannot be published to"""
    found = fs.stat(output_dir)
    if found is not None and (not found.is_dir or fs.listdir(output_dir)):
        if not replace:
            hint = "name a new directory, or give --replace if it is an earlier output"
            raise UsageError("--output-dir exists and is not empty", path=output_dir, hint=hint)
        require_replaceable(fs, output_dir)
    if found is not None and is_mount_point(output_dir):
        hint = "name a new directory below it: the output appears by a rename, which a mount point refuses"
        raise UsageError("--output-dir is a mount point", path=output_dir, hint=hint)
