"""``--output-layout``: the copy that a command writes, as a backup set in place of a log directory.

The command writes, and verifies, its copy in a temporary directory: beside a target on a disk, else where the segments of its
source are converted. If no log failed, the copy's logs are then written as a set, complete or not at all.

Tested by ``tests/jobs/test_backup_sets.py``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.errors import UsageError
from compaction.fs.local import LocalFileSystem
from compaction.fs.uri import BACKUP, SPOOL, is_layout, is_remote, layout_path, options_of, parse_uri
from compaction.printable import printable
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.stores.mixed import file_system

from . import _options
from ._arguments import check_output_dir, read_selector

if TYPE_CHECKING:
    from compaction.exports.backup_writer import BackupTarget

UNCOMMITTED = "uncommitted"
Body = Callable[[argparse.Namespace], int]


def in_layout(arguments: argparse.Namespace, body: Body) -> int:
    """Runs a command's body, and writes its copy in the layout that was asked for; returns the exit code.

    :raises UsageError: options contradict each other, what a set does not have was not accepted, or the target is not empty
    """
    if arguments.output_layout is None:
        if arguments.accept_loss:
            raise UsageError("--accept-loss is an option of --output-layout", hint="see --help")
        return body(arguments)
    # with what it imports, it is not needed otherwise
    from compaction.exports.backup_writer import write_set

    target = _target(arguments)
    if arguments.dry_run:
        return body(arguments)
    with _scratch(arguments, target) as scratch:
        copy = str(Path(scratch) / "copy")
        code = body(argparse.Namespace(**{**vars(arguments), "output_dir": copy}))
        if code:
            return code
        step("writing the backup set")
        written = write_set(copy, target, arguments.as_of_ms or time.time_ns() // 1_000_000)
    if arguments.output != _options.JSON:
        what = f"{counted(written.records, 'record')} in {counted(written.segments, 'segment')}"
        left_out = f", without {counted(written.left_out, 'offset')} not committed" if written.left_out else ""
        sys.stdout.write(printable(f"{target.path}: backup set of {what}{left_out}") + "\n")
    return code


def _scratch(arguments: argparse.Namespace, target: BackupTarget) -> AbstractContextManager[str]:
    from compaction.exports.staging import staging_directory
    from compaction.stores.layouts.backup_sets.spool_directory import temporary_directory

    if not is_remote(target.path):
        return staging_directory(LocalFileSystem(), f"{target.path}.copy")
    spool = options_of(parse_uri(arguments.log_dir[0], "--log-dir")).get(SPOOL)
    return temporary_directory(None if spool is None else str(Path(spool).parent))


def _target(arguments: argparse.Namespace) -> BackupTarget:
    from compaction.exports.backup_writer import LOST, BackupTarget, require_empty
    from compaction.formats.backup_set.set_segment import Compression
    from compaction.stores.layouts.backup_sets.set_objects import read_manifest

    if arguments.output_dir is None:
        raise UsageError("--output-layout needs --output-dir", hint="name a new directory, or a URI, for the set")
    if arguments.replace or arguments.if_done:
        raise UsageError("--output-layout cannot be combined with --replace and --if-done", hint="name a new directory")
    if len(arguments.log_dir) != 1:
        raise UsageError("a backup set is written from one --log-dir", hint="run once for each")
    if not arguments.accept_loss and not arguments.dry_run:
        raise UsageError(f"a backup set has no {LOST}", hint="give --accept-loss to write it without these")
    source = parse_uri(arguments.log_dir[0], "--log-dir")
    path = check_output_dir(arguments.output_dir, [source]) or ""
    require_empty(path)
    committed_only = arguments.accept_loss == UNCOMMITTED
    if not is_layout(source) or layout_path(source).layout != BACKUP:
        return BackupTarget(path, committed_only=committed_only)
    place = layout_path(source).place
    base = read_manifest(file_system([place]), place)
    known = Compression.__members__.get(str(base.document.get("compression")).upper(), Compression.ZSTD)
    return BackupTarget(path, known, base, read_selector(arguments), committed_only)
