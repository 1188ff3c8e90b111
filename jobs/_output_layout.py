"""``--output-layout``: the copy that a command writes, in another layout than a log directory's.

The command writes, and verifies, its copy in a temporary directory: beside a target on a disk, else where the segments of its
source are converted. If no log failed, the copy's logs are then written in the layout, complete or not at all.

Tested by ``tests/jobs/test_backup_sets.py`` and ``tests/jobs/test_tiered_output.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.errors import UsageError
from compaction.fs.local import LocalFileSystem
from compaction.fs.uri import AIVEN, BACKUP, LOCAL_TIERED, SPOOL, is_remote, layout_path, options_of, parse_uri
from compaction.printable import printable
from compaction.screen.steps import step

from . import _options
from ._arguments import as_of_ms, check_output_dir, read_selector
from ._exports import join_tail

if TYPE_CHECKING:
    from compaction.exports.export_target import ExportTarget

#: what the result says was written
_NAMES = {AIVEN: "tiered storage", BACKUP: "backup set", LOCAL_TIERED: "tiered storage"}
Body = Callable[[argparse.Namespace], int]


def in_layout(arguments: argparse.Namespace, body: Body) -> int:
    """Runs a command's body, and writes its copy in the layout that was asked for; returns the exit code.

    :raises UsageError: options contradict each other, what a set does not have was not accepted, or the target is not empty
    """
    if arguments.output_layout is None:
        if arguments.accept_loss:
            raise UsageError("--accept-loss is an option of --output-layout", hint="see --help")
        return body(arguments)
    target = _target(arguments)
    if arguments.dry_run:
        return body(arguments)
    with _scratch(arguments, target) as scratch:
        copy = str(Path(scratch) / "copy")
        code = body(argparse.Namespace(**{**vars(arguments), "output_dir": copy}))
        if code:
            return code
        step(f"writing the output in layout {arguments.output_layout}")
        written = target.write(copy, as_of_ms(arguments))
    if arguments.output != _options.JSON:
        sys.stdout.write(printable(f"{target.path}: {_NAMES[arguments.output_layout]} of {written}") + "\n")
    return code


def _scratch(arguments: argparse.Namespace, target: ExportTarget) -> AbstractContextManager[str]:
    from compaction.exports.staging import staging_directory
    from compaction.stores.layouts.backup_sets.spool_directory import temporary_directory

    if not is_remote(target.path):
        return staging_directory(LocalFileSystem(), f"{target.path}.copy")
    source = parse_uri(arguments.log_dir[0], "--log-dir")
    spool = options_of(source).get(SPOOL)
    if spool is not None and layout_path(source).layout == BACKUP:
        # the run's own directory below it
        spool = str(Path(spool).parent)
    return temporary_directory(spool)


def _target(arguments: argparse.Namespace) -> ExportTarget:
    if arguments.output_dir is None:
        raise UsageError("--output-layout needs --output-dir", hint="name a new directory, or a URI")
    if arguments.replace or arguments.if_done:
        raise UsageError("--output-layout cannot be combined with --replace and --if-done", hint="name a new directory")
    if len(arguments.log_dir) != 1:
        raise UsageError("an output in another layout is written from one --log-dir", hint="run once for each")
    # with what it imports, it is not needed otherwise
    from compaction.exports.export_target import FORMAT, TargetOptions
    from compaction.exports.written_layouts import WRITTEN

    source = parse_uri(arguments.log_dir[0], "--log-dir")
    join_tail(arguments, [source])
    path = check_output_dir(arguments.output_dir, [source]) or ""
    accepted = arguments.accept_loss or (FORMAT if arguments.dry_run else None)
    options = TargetOptions(path, source, read_selector(arguments), accepted, arguments.dry_run)
    return WRITTEN[arguments.output_layout](options)
