"""Ownership of an unfinished output in a store: the objects that a later run may remove.

A run removes only objects that an earlier run can have written. It takes over an unfinished output under two conditions: the
marker names the log directories of this run, as in a repetition of a stopped run, and every object has a name that such a run
writes: a file of a log or of a log directory, or a name that the source also has. Objects of runs over other log directories,
of exports, and of other programs are refused and remain. A finished output is only replaced if it is unchanged since it was
written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from compaction.errors import UsageError
from compaction.names import parse_partition_dir, parse_segment_file
from compaction.storage.filesystem import ReadableFileSystem, base_name, join
from compaction.storage.manifest import MANIFEST, MARKER, is_significant, marker, sources_of
from compaction.storage.object_output import CLAIM, OutputFileSystem
from compaction.storage.object_store import delete_object, list_directory, objects_below, read_whole
from compaction.storage.uri import resolved

_LOG = logging.getLogger(__name__)
_YOURSELF = "if no run is writing there, remove it yourself, or name another one"


def marker_of(run: str, log_dirs: Sequence[str]) -> bytes:
    """The marker of a run that copies these log directories."""
    return marker(run, sources=[resolved(log_dir) for log_dir in log_dirs])


class OwnNames:
    """The names that objects of an output can have.

    :param roots: by log directory, the URI that its output is written to
    :param known: other names of the output's objects, relative to it
    """

    def __init__(self, disk: ReadableFileSystem, output_dir: str, roots: Mapping[str, str], known: Iterable[str] = ()) -> None:
        self._disk, self._output_dir, self._roots, self._known = disk, output_dir, roots, frozenset(known)

    def foreign(self, names: Iterable[str]) -> list[str]:
        """The names, relative to the output, that none of its objects can have."""
        return sorted(name for name in names if not self._has(name))

    def _has(self, name: str) -> bool:
        folder, file = join(self._output_dir, name).rsplit("/", 1)
        if name in (MANIFEST, MARKER) or name.startswith(CLAIM) or name in self._known:
            return True
        # tasks may have written to a log that the source has no more
        of_a_log = parse_segment_file(file) is not None and parse_partition_dir(base_name(folder)) is not None
        of_a_directory = is_significant(file) and (folder in self._roots.values() or parse_partition_dir(base_name(folder)))
        return bool(of_a_log or of_a_directory) or any(self._is_copied(log_dir, folder, file) for log_dir in self._roots)

    def _is_copied(self, log_dir: str, folder: str, file: str) -> bool:
        """Whether a log directory has a file that is copied to this name."""
        root = self._roots[log_dir]
        if folder != root and not folder.startswith(f"{root}/"):
            return False
        stat = self._disk.stat(join(log_dir, *filter(None, (folder[len(root) + 1 :], file))))
        return stat is not None and stat.is_file


def require_taken_over(output_dir: str, names: Sequence[str], own: OwnNames, log_dirs: Sequence[str]) -> None:
    """Check that an unfinished output is one of a run over the same log directories.

    :param names: the entries of the output
    :raises UsageError: it is another run's, or has objects of somebody else
    """
    if not is_taken_over(output_dir, names, log_dirs):
        sources = _sources(output_dir, names)
        whose = "an export, or of an earlier version" if sources is None else f"a run over {', '.join(map(str, sources))}"
        raise UsageError(f"--output-dir is the unfinished output of {whose}", path=output_dir, hint=_YOURSELF)
    foreign = own.foreign(objects_below(output_dir))
    if foreign:
        message = f"--output-dir is an unfinished output with {foreign[0]}, which no run has written"
        raise UsageError(message, path=output_dir, hint="move it away, or name another directory")
    _LOG.warning("%s: removing the unfinished output of an earlier run", output_dir)


def is_taken_over(output_dir: str, names: Sequence[str], log_dirs: Sequence[str]) -> bool:
    """Whether an output is that of a run over the same log directories, by its marker; one without a marker is finished."""
    marked = any(name == MARKER or name.startswith(CLAIM) for name in names)
    return not marked or _sources(output_dir, names) == sorted(map(resolved, log_dirs))


def _sources(output_dir: str, names: Sequence[str]) -> list[str] | None:
    mark = MARKER if MARKER in names else next(name for name in names if name.startswith(CLAIM))
    return sources_of(read_whole(join(output_dir, mark)))


def remove_own(output: OutputFileSystem, output_dir: str, names: Iterable[str], own: OwnNames) -> None:
    """Remove entries of an output, but for objects that no run has written."""
    found, foreign = list_directory(output_dir), own.foreign(objects_below(output_dir))
    for name in names:
        path = join(output_dir, name)
        is_dir = name in found and found[name].is_dir
        kept = [entry for entry in foreign if entry == name or entry.startswith(f"{name}/")]
        if kept:
            _LOG.warning("%s: keeping %s, which no run has written", output_dir, kept[0])
        if is_dir and kept:
            inside = [entry for entry in objects_below(output_dir) if entry.startswith(f"{name}/")]
            for extra in set(inside).difference(kept):
                delete_object(join(output_dir, extra))
        elif is_dir:
            output.remove_tree(path)
        elif not kept:
            delete_object(path)
