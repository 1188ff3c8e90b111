"""The target of a copy: where its files are written, and how it becomes visible, complete or not at all.

There are two protocols, as no operation of a disk exists in a store and the reverse. ``LocalTarget`` writes to a hidden
directory, and a rename commits; ``ObjectTarget`` writes under the final prefix, and a manifest commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from compaction.config.request import CheckCopy
from compaction.errors import UsageError
from compaction.storage.filesystem import FileSystem, base_name, join
from compaction.storage.manifest import Entry, SourceLog
from compaction.storage.uri import is_inside, resolved


class Written(NamedTuple):
    """A file of an output as it was written: size, content hash (``None``: unknown), and modification time, ns (0: that of the
    write)."""

    size: int
    xxh3_128: str | None
    mtime_ns: int = 0


class Record(NamedTuple):
    """The record of a finished output besides its files, see ``Manifest``: its request, and the logs that were copied by their
    paths in the output. Without a request, an output on a disk has no record."""

    call: Mapping[str, Any] | None
    sources: Mapping[str, SourceLog] | None = None


class Target(Protocol):
    """The target of one run; ends with :meth:`commit` or :meth:`abort`."""

    @property
    def files(self) -> FileSystem:
        """Writes the output."""

    @property
    def place(self) -> str:
        """The directory in which it is written."""

    def require_own(self) -> None:
        """:raises StorageError: another run has begun to write to the output"""

    def promote(self, source: str, path: str, size: int) -> None:
        """Give a file that a task has written and verified its final name."""

    def commit(self, written: Mapping[str, Written], record: Record, check: Callable[[str], None]) -> None:
        """Check that every file of the output is there, and make the output visible.

        :param written: the files by path
        :param check: called before that with the directory in which the output is complete; raises to prevent it
        """

    def abort(self, *, tasks_may_write: bool) -> None:
        """Remove everything that was written.

        :param tasks_may_write: killed tasks may still write files of this output
        """


def no_entry(_: str) -> Entry | None:
    """There is no previous copy."""
    return None


class PublishOptions(NamedTuple):
    """``call`` is recorded in the output, so that a later run can tell whether it is the output of the same request; ``None``:
    nothing is recorded. ``replace``: an earlier output is replaced. ``only_known``: files that no broker loads are not copied:
    they may have what was erased. ``entry_of``: the entry of a file of a previous copy, by its path. ``check`` is called before
    the output appears, see ``CompactionRequest``."""

    call: Mapping[str, Any] | None = None
    replace: bool = False
    only_known: bool = False
    entry_of: Callable[[str], Entry | None] = no_entry
    check: CheckCopy | None = None


NEW_OUTPUT = PublishOptions()


def layout(root: str, log_dirs: Sequence[str]) -> dict[str, str]:
    """The output directory of each log directory: ``root`` itself if there is one, else a subdirectory of the same name.

    :raises UsageError: two log directories have the same name
    """
    if len(log_dirs) == 1:
        return {log_dirs[0]: root}
    names = [base_name(log_dir) for log_dir in log_dirs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two log directories are called {name}", hint="publish them one at a time")
    return {log_dir: join(root, name) for log_dir, name in zip(log_dirs, names, strict=True)}


def require_target(output_dir: str, log_dirs: Sequence[str]) -> None:
    """:raises UsageError: ``output_dir`` is inside a log directory, or two log directories have the same name"""
    for log_dir in log_dirs:
        if is_inside(resolved(output_dir), resolved(log_dir)):
            message = f"--output-dir is inside the log directory {log_dir}"
            raise UsageError(message, path=output_dir, hint="name another directory")
    layout(output_dir, log_dirs)


def require_replace(output_dir: str, *, replace: bool) -> None:
    """:raises UsageError: an output that is there is not to be replaced"""
    if not replace:
        hint = "name a new directory, or give --replace if it is an earlier output"
        raise UsageError("--output-dir exists and is not empty", path=output_dir, hint=hint)
