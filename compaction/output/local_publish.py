"""Publishes cleaned logs to a directory on disk, which appears by a rename.

Files are written to a hidden directory beside the target, whose name cannot be guessed and which only its owner may enter.
They are fsynced and read back; renaming the directory is the last step. A killed run leaves only the hidden directory, which
the next run removes.

An earlier output is replaced if it is unchanged since it was written. The run compares its content at the beginning. When the
new output is complete, the earlier one is locked as a broker locks it, and one system call exchanges the two names. The
earlier output now has a hidden name, and its files are compared with those of the beginning, by inode, size and times. If they
are equal, it is removed; otherwise the names are exchanged back. If the file system has no such call, the earlier output is
renamed to a second hidden name first; if a run is killed between these two renames, the next run renames it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from compaction.errors import StorageError, UsageError
from compaction.locking.mounts import is_mount_point
from compaction.names import parse_partition_dir
from compaction.output.finished import (
    FINISHED,
    RETIRED,
    STAGED,
    files_below,
    hidden_name,
    remove_leftovers,
    require_as_written,
    require_replaceable,
)
from compaction.output.target import PublishOptions, Record, Written, require_replace, require_target
from compaction.storage.durable import write_verified
from compaction.storage.filesystem import DiskFileSystem, FileStat, FileSystem, base_name, join, parent
from compaction.storage.manifest import Entry, Manifest


class LocalTarget:
    """See ``Target``. Begin with :meth:`begin`.

    :param earlier: the files of an output to be replaced, as they were when the run began
    """

    def __init__(
        self, fs: DiskFileSystem, output_dir: str, staging: str, earlier: Mapping[str, FileStat] | None, *, replace: bool
    ) -> None:
        self.files, self._output_dir, self._staging = fs, output_dir, staging
        self.place = join(staging, "data")
        self._earlier, self._may_replace = earlier, replace
        self._lock = fs.lock(staging)

    @classmethod
    def begin(cls, fs: DiskFileSystem, output_dir: str, log_dirs: Sequence[str], options: PublishOptions) -> LocalTarget:
        """See ``Publication.begin``."""
        output_dir = str(Path(output_dir).absolute())
        require_target(output_dir, log_dirs)
        remove_leftovers(fs, output_dir)
        earlier = _check_target(fs, output_dir, replace=options.replace)
        staging = hidden_name(output_dir, STAGED)
        try:
            fs.mkdir(parent(output_dir))
            fs.mkdir(staging, private=True)
        except StorageError as error:
            hint = "name a directory in one that can be written"
            raise UsageError(f"--output-dir: {error.message}", path=output_dir, hint=hint) from error
        return cls(fs, output_dir, staging, earlier, replace=options.replace)

    def require_own(self) -> None:
        """No operation: a hidden directory has no other writer."""

    def promote(self, source: str, path: str, size: int) -> None:
        self.files.rename(source, path)

    def commit(self, written: Mapping[str, Written], record: Record, check: Callable[[str], None]) -> None:
        """:raises StorageError: a file that was written is missing or has another size"""
        fs, output_dir = self.files, self._output_dir
        entries = []
        for path, file in written.items():
            stat = fs.stat(path)
            if stat is None or stat.size != file.size:
                hint = "nothing has appeared; check the disk, and what else writes to this directory, and run again"
                raise StorageError("file has changed since it was written", path=path, hint=hint)
            entries.append(Entry(path[len(self.place) + 1 :], file.size, stat.mtime_ns // 1_000_000, None, file.xxh3_128))
        if record.call is not None:
            empty = [Entry(name, 0, 0) for name in files_below(fs, self.place) if name.endswith("/")]
            manifest = Manifest((*entries, *empty), None, None, *record)
            write_verified(fs, join(self.place, FINISHED), manifest.to_json())
        fs.fsync_dir(self.place)
        check(self.place)
        if self._may_replace and fs.stat(output_dir) is not None and fs.listdir(output_dir):
            self._replace()
        else:
            fs.rename(self.place, output_dir)
            fs.fsync_dir(parent(output_dir))
        self.abort()

    def _replace(self) -> None:
        """Put the output in the place of an earlier one, and remove that.

        :raises UsageError: the earlier one has changed since the run began; it is in place again
        :raises LockedError: a broker or a run uses it
        :raises StorageError: the file system refused; one of the two is in place, and the next run removes the other
        """
        output_dir, fs = self._output_dir, self.files
        earlier = require_replaceable(output_dir, fs)[1] if self._earlier is None else self._earlier
        retired = hidden_name(output_dir, RETIRED)
        with ExitStack() as locks:
            for root in _roots(earlier):
                if fs.stat(join(output_dir, root)) is not None:
                    locks.callback(fs.lock(join(output_dir, root).rstrip("/")).release)
            if not self._exchange(retired, earlier):
                fs.rename(output_dir, retired)
                try:
                    _require_same(fs, retired, output_dir, earlier)
                    fs.rename(self.place, output_dir)
                except (StorageError, UsageError):
                    fs.rename(retired, output_dir)
                    raise
            fs.fsync_dir(parent(output_dir))
            # under this name the next run removes it without a comparison
            compared = hidden_name(output_dir, STAGED)
            fs.rename(retired, compared)
            fs.remove_tree(compared)

    def _exchange(self, retired: str, earlier: Mapping[str, FileStat]) -> bool:
        """Exchange the output, renamed to ``retired``, and the earlier one; ``False`` if the file system cannot do that."""
        fs, output_dir = self.files, self._output_dir
        fs.rename(self.place, retired)
        try:
            exchanged = fs.exchange(retired, output_dir)
            if exchanged:
                try:
                    _require_same(fs, retired, output_dir, earlier)
                except (StorageError, UsageError):
                    exchanged = not fs.exchange(retired, output_dir)
                    raise
        finally:
            if not exchanged:
                fs.rename(retired, self.place)
                fs.fsync_dir(parent(retired))
        return exchanged

    def abort(self, *, tasks_may_write: bool = False) -> None:
        self._lock.release()
        self.files.remove_tree(self._staging)


def _roots(files: Iterable[str]) -> list[str]:
    """The log directories of an output, of the relative paths of its files."""
    logs = {folder for folder in (name.rpartition("/")[0] for name in files) if parse_partition_dir(base_name(f"/{folder}"))}
    return sorted({"", *(log.rpartition("/")[0] for log in logs)})


def _require_same(fs: FileSystem, path: str, output_dir: str, earlier: Mapping[str, FileStat]) -> None:
    """:raises UsageError: the output, now at ``path``, has other files than when they were compared with what was written"""
    after = {name: _identity(stat) for name, stat in files_below(fs, path).items()}
    before = {name: _identity(stat) for name, stat in earlier.items()}
    changed = sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name))
    require_as_written(output_dir, f"{changed[0]} has changed during this run" if changed else None)


def _identity(stat: FileStat) -> tuple[int, ...]:
    """The attributes that a write or a replacement changes; of a directory none, as only its emptiness counts."""
    return () if stat.is_dir else (stat.is_file, stat.inode, stat.size, stat.mtime_ns, stat.ctime_ns)


def _check_target(fs: DiskFileSystem, output_dir: str, *, replace: bool) -> dict[str, FileStat] | None:
    """The files of an earlier output, if there is one to be replaced.

    :raises UsageError: ``output_dir`` cannot be published to
    """
    stat = fs.stat(output_dir)
    if stat is not None and is_mount_point(output_dir):
        hint = "name a new directory below it: the output appears by a rename, which a mount point refuses"
        raise UsageError("--output-dir is a mount point", path=output_dir, hint=hint)
    if stat is None or (stat.is_dir and not fs.listdir(output_dir)):
        return None
    require_replace(output_dir, replace=replace)
    return require_replaceable(output_dir, fs)[1]
