"""The target of a copy, and finished outputs: they are recognized, compared with a request, and checked for changes.

A target is where the files of a copy are written, and how it becomes visible, complete or not at all. There are two, as no
operation of a disk exists in a store and the reverse (``compaction.output.publish``).

A finished output in an object store has a manifest. On a disk it has a file of the same format, ``FINISHED``, if the run was
given ``--replace`` or ``--if-done``; a broker ignores it. Only such an output is ever replaced, and only if its content is
exactly as written: otherwise it holds other data, for example records that a broker has appended.

Requests are compared by sources, selection, configuration, options and time. The content of the sources is not compared, but an
output without a selected log is incomplete.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Protocol

import xxhash

from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, CorruptLogError, LockedError, StorageError, UsageError
from compaction.files.contents import read_range
from compaction.files.durable import replace_file
from compaction.files.filesystem import DiskFileSystem, FileRange, FileStat, FileSystem, base_name, join, parent, storage_of
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, MARKER, Entry, Manifest, Manifests, is_late
from compaction.files.mixed import OutputFileSystem, file_system
from compaction.files.object_store import ObjectFile, objects_below
from compaction.files.uri import is_inside, resolved
from compaction.names import LOCK, is_significant
from compaction.screen.amounts import counted

_LOG = logging.getLogger(__name__)
FINISHED = "_finished.json"
#: suffixes of hidden directories beside an output: one being written, and one that is being replaced
STAGED, RETIRED = ".partial", ".replaced"
_HIDDEN = re.compile(rf"[0-9a-f]{{32}}({re.escape(STAGED)}|{re.escape(RETIRED)})")
_THREADS = 8
#: attributes of a link to nothing
_NOTHING = FileStat(0, 0, 0, 0, 0, is_dir=False, is_file=False)
#: a name in the recorded request of an output that is not certified
_CERTIFICATE = "certificate"


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

    def commit(self, written: Manifest, check: Callable[[str], None]) -> None:
        """Check that every file of the output is there, and make the output visible.

        :param written: the output as it was written, without ETags; a file without a modification time (0) has that of its
            write. Without a request, an output on a disk gets no manifest
        :param check: called before that with the directory in which the output is complete; raises to prevent it
        """

    def abort(self, *, tasks_may_write: bool) -> None:
        """Remove everything that was written.

        :param tasks_may_write: killed tasks may still write files of this output
        """


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


def is_done(request: CompactionRequest) -> bool:
    """Whether the output directory already has the complete and true result of this request.

    ``False`` if it has no finished output, or one that the request allows to replace.

    :raises UsageError: it has the output of another request
    :raises StorageError: it lacks logs, or has changed since it was written
    """
    if request.output_dir is None:
        return False
    output_dir = request.output_dir
    manifest = None if request.dry_run else read_finished(output_dir)
    if manifest is None:
        return False
    differing = differences(manifest.request, request.call)
    try:
        if differing:
            message = f"--output-dir has the output of another request: it differs in {', '.join(differing)}"
            raise UsageError(message, path=output_dir, hint="name another directory, or give --replace")
        folders = {folder.rpartition("/")[2] for folder in manifest.folders}
        lacking = [str(log.topic_partition) for log in request.logs if base_name(log.path) not in folders]
        if lacking:
            message = f"the finished output lacks {counted(len(lacking), 'log')}, failed or new, the first is {lacking[0]}"
            raise StorageError(message, path=output_dir, hint="give --replace to write it again")
        problem = problem_of(file_system([output_dir]), output_dir, manifest, _listed(output_dir, manifest, is_significant))
        if problem is not None:
            hint = "remove it and run again, or name a new directory"
            raise StorageError(f"the finished output is not what was written: {problem}", path=output_dir, hint=hint)
    except CompactionError:
        if request.replace:
            return False
        raise
    return True


def read_finished(output_dir: str, files: DiskFileSystem | None = None) -> Manifest | None:
    """The manifest of a finished output; ``None`` if there is none, or if it is unfinished.

    :param files: of a disk
    :raises CorruptLogError: it is malformed
    """
    if not storage_of(output_dir).renames:
        objects = objects_below(output_dir)
        # an unfinished output is replaced by any run
        return Manifests().manifest(output_dir) if MANIFEST in objects and MARKER not in objects else None
    fs, path = files or file_system([output_dir]), join(output_dir, FINISHED)
    stat = fs.stat(path)
    return None if stat is None or not stat.is_file else Manifest.parse(fs.read_bytes(path), path)


def _listed(
    output_dir: str, manifest: Manifest, matters: Callable[[str], bool], files: DiskFileSystem | None = None
) -> dict[str, FileStat]:
    """The files of an output by relative path: on a disk everything, in a store its objects and others whose names matter."""
    if storage_of(output_dir).renames:
        return files_below(files or file_system([output_dir]), output_dir)
    names, objects = {entry.path for entry in manifest.files}, objects_below(output_dir)
    return {name: stat for name, stat in objects.items() if name != MANIFEST and (name in names or matters(base_name(name)))}


def uncertified(request: CompactionRequest) -> CompactionRequest:
    """The request that an output records until it is certified: it is not the output of ``request``."""
    call = request.call
    return request if call is None else replace(request, call={**call, _CERTIFICATE: "none, or it does not hold"})


def record_request(output_dir: str, call: Mapping[str, object]) -> None:
    """Change the request that a finished output records.

    :raises StorageError: it is not finished, or the file system refused
    """
    manifest = read_finished(output_dir)
    if manifest is None:
        raise StorageError("is not a finished output", path=output_dir, hint="let one run at a time write there")
    data = replace(manifest, request=call).to_json()
    if storage_of(output_dir).renames:
        replace_file(LocalFileSystem(), join(output_dir, FINISHED), data)
    else:
        OutputFileSystem().write_file(join(output_dir, MANIFEST), data)


def differences(written: Mapping[str, object] | None, asked: Mapping[str, object] | None) -> list[str]:
    if written is None or asked is None:
        return ["everything: it was written by a run that did not record its request"]
    return sorted(name for name in written.keys() | asked.keys() if written.get(name) != asked.get(name))


def find_manifest(output_dir: str, option: str, hint: str, files: DiskFileSystem | None = None) -> Manifest:
    """The manifest of a finished output.

    :param option: the option that names it
    :raises UsageError: it is not finished
    :raises CorruptLogError: the manifest is malformed
    """
    on_disk = storage_of(output_dir).renames
    if on_disk and (files or file_system([output_dir])).stat(output_dir) is None:
        raise UsageError(f"{option}: no such directory", path=output_dir, hint="name the output of an earlier run")
    manifest = read_finished(output_dir, files)
    if manifest is None:
        problem = f"this directory has no {FINISHED}: it is not an output of a run with --replace or --if-done"
        problem = problem if on_disk else f"this is not a finished output: it has no {MANIFEST}"
        raise UsageError(f"{option}: {problem}", path=output_dir, hint=hint)
    return manifest


def require_replaceable(
    output_dir: str, files: DiskFileSystem | None = None, *, may_replace: bool = True
) -> tuple[Manifest, dict[str, FileStat]]:
    """Check that an output is finished, and byte for byte as it was written; returns its manifest and its files.

    Late uploads of killed tasks do not matter, as readers do not see them.

    :param files: of a disk
    :param may_replace: the call allows it
    :raises UsageError: it is not, or must not be replaced
    :raises LockedError: a broker or a run uses it
    """
    if not may_replace:
        hint = "name a new directory, or give --replace if it is an earlier output"
        raise UsageError("--output-dir exists and is not empty", path=output_dir, hint=hint)
    manifest = find_manifest(output_dir, "--replace", "remove it yourself if it is not needed, or name a new directory", files)
    fs = files or file_system([output_dir])
    holder = fs.lock_holder(output_dir)
    if holder is not None:
        raise LockedError(f"--replace: {holder} uses this output", path=output_dir, hint="stop it, or name a new directory")
    listed = _listed(output_dir, manifest, lambda name: not is_late(name), files)
    require_as_written(output_dir, problem_of(fs, output_dir, manifest, listed))
    return manifest, listed


def require_as_written(output_dir: str, problem: str | None) -> None:
    """:raises UsageError: there is a problem: the output must not be replaced"""
    if problem is not None:
        hint = "it may hold data of others: remove it yourself, or name a new directory"
        raise UsageError(f"--replace: this output has changed since it was written: {problem}", path=output_dir, hint=hint)


def hidden_name(output_dir: str, suffix: str) -> str:
    """A new name beside an output directory, which cannot be guessed."""
    return join(parent(output_dir), f".{base_name(output_dir)}.{uuid.uuid4().hex}{suffix}")


def remove_leftovers(fs: DiskFileSystem, output_dir: str) -> None:
    """Remove what killed runs left beside an output directory on a disk. If one of them was replacing an earlier output, that
    is renamed back if nothing is in its place.

    :raises LockedError: another run is publishing there
    :raises UsageError: several earlier outputs were to be replaced
    """
    above, stem = parent(output_dir), f".{base_name(output_dir)}."
    names = fs.listdir(above) if fs.stat(above) is not None else []
    hidden = {name: _HIDDEN.fullmatch(name[len(stem) :]) for name in names if name.startswith(stem)}
    own = {join(above, name): match[1] for name, match in hidden.items() if match and _is_own(fs, join(above, name))}
    for path in (path for path, suffix in own.items() if suffix == STAGED):
        # a shared lock creates no file: somebody may have planted a link here
        fs.lock(path, shared=True).close()
        fs.remove_tree(path)
    retired = [path for path, suffix in own.items() if suffix == RETIRED]
    if retired and fs.stat(output_dir) is None:
        if len(retired) > 1:
            hint = f"rename one of them to {output_dir}"
            raise UsageError("several earlier outputs were to be replaced", path=above, hint=hint)
        fs.rename(retired.pop(), output_dir)
        fs.fsync_dir(above)
    for path in retired:
        # a killed run may have replaced it before it compared it
        manifest = read_finished(path, fs)
        problem = f"it has no {FINISHED}" if manifest is None else problem_of(fs, path, manifest, files_below(fs, path))
        if problem is None:
            fs.remove_tree(path)
        else:
            message = "%s: keeping this replaced output, as it has changed: %s; remove it if it is not needed"
            _LOG.warning(message, path, problem)


def _is_own(fs: FileSystem, path: str) -> bool:
    stat = fs.stat(path)
    return stat is not None and stat.is_dir and stat.uid == os.geteuid()


def problem_of(fs: FileSystem, output_dir: str, manifest: Manifest, listed: Mapping[str, FileStat]) -> str | None:
    """The first difference of an output, with these names, from what was written."""
    unmatched = dict(listed)
    for entry in manifest.files:
        stat = unmatched.pop(entry.path, None)
        if stat is None:
            return f"{entry.path} is missing"
        if not stat.is_file and not entry.path.endswith("/"):
            return f"{entry.path} is not a file"
        if stat.size != entry.size:
            return f"{entry.path} has {stat.size} bytes, {entry.size} were written"
    if unmatched:
        return f"{min(unmatched)} is new"
    files = (entry for entry in manifest.files if not entry.path.endswith("/"))
    # objects of a copy under another URI may have other ETags; files have none
    etags = manifest.place in (None, output_dir)
    with ThreadPoolExecutor(_THREADS) as pool:
        problems = pool.map(lambda entry: _content_problem(fs, join(output_dir, entry.path), entry, etags=etags), files)
        return next((issue for issue in problems if issue is not None), None)


def _content_problem(fs: FileSystem, path: str, entry: Entry, *, etags: bool) -> str | None:
    if etags and entry.etag is not None:
        with closing(ObjectFile(path)) as file:
            return None if file.etag() == entry.etag else f"{entry.path} was replaced"
    content = xxhash.xxh3_128()
    try:
        for block in read_range(fs, FileRange(path, 0, entry.size)):
            content.update(block)
    except CorruptLogError:
        # what is read of an output in a store is compared with its manifest, too
        return f"{entry.path} has other contents"
    return None if content.hexdigest() == entry.xxh3_128 else f"{entry.path} has other contents"


def files_below(fs: FileSystem, directory: str, prefix: str = "") -> dict[str, FileStat]:
    """The entries below a directory on a disk, by relative path: files, links, and with a final ``/`` empty directories.

    Not ``FINISHED`` and lock files, which have no content.
    """
    stats: dict[str, FileStat] = {}
    for name in fs.listdir(directory):
        path = join(directory, name)
        stat = fs.stat(path)
        if stat is None or os.path.islink(path):  # noqa: PTH114
            stats[prefix + name] = (stat or _NOTHING)._replace(is_file=False)
        elif stat.is_dir:
            below = files_below(fs, path, f"{prefix}{name}/")
            stats |= below or {f"{prefix}{name}/": stat._replace(size=0)}
        elif prefix + name != FINISHED and (name, stat.size) != (LOCK, 0):
            stats[prefix + name] = stat
    return stats
