"""``doctor``: checks the requirements of runs, log directories, and logs whose cleaner has died, and suggests fixes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.checkup.check import MACHINE, Check, Checkup, State, check_lines, check_machine
from compaction.cli import execution
from compaction.commands import warm_up
from compaction.errors import UsageError
from compaction.options.inputs import Inputs, read_request
from compaction.options.option import CommandOptions
from compaction.options.table import MESSAGES, OPTIONAL_LOG_DIRS, OUTPUT, TEXT, DoctorOptions
from compaction.options.values import Texts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from compaction.checkup.log_health import CleanerLog

_DESCRIPTION = """\
Check the requirements of runs: Java, Python packages, caches, memory, free space, the clock, and
access by other users. With --log-dir, also check log directories: locks, leftovers, unreadable
logs, and logs whose cleaner has died. No file is changed.

A broker keeps its list of uncleanable partitions only in memory. At rest there are three signs of
them: the broker's log names them (--broker-log); a batch in the cleanable range is damaged; or a
log was cleanable for more than a day when the broker last wrote it.
"""

_EPILOG = """\
exit status:
  0  no problem; there may be notes
  1  at least one problem, each with a fix
  2  usage error (option, configuration, no such directory or file, no log selected)

examples:
  Can runs start on this machine?
    kafka-log-compaction doctor

  Did a cleaner die, and on which partitions?
    kafka-log-compaction doctor --log-dir /var/lib/kafka/data --broker-log /opt/kafka/logs/log-cleaner.log

  A document for a bug report, without the names of topics
    kafka-log-compaction doctor --log-dir /var/lib/kafka/data --output json
"""

OPTIONS = CommandOptions("doctor", DoctorOptions, OPTIONAL_LOG_DIRS, OUTPUT, MESSAGES, description=_DESCRIPTION, epilog=_EPILOG)


@OPTIONS.function
def doctor(log_dirs: Texts = (), **options: Unpack[DoctorOptions]) -> Checkup:
    """Checks the requirements of runs; with ``log_dirs`` also log directories. No file is changed.

    >>> compaction.doctor(log_dir, quick=True).exit_code in (0, 1)
    True

    The parameters are the options of ``kafka-log-compaction doctor``, see ``compact``.

    :raises UsageError: an argument is invalid
    """
    return Checkup(tuple(_checks(log_dirs, options)), options["show_topics"])


def _checks(log_dirs: Texts, options: DoctorOptions) -> Iterator[Check]:
    """The checks, as they are made."""
    inputs = Inputs.of(OPTIONS, options, log_dirs=log_dirs).having(dry_run=True)
    cleaner = _cleaner_log(inputs["broker_logs"]) if inputs["broker_logs"] else None
    request = read_request(inputs) if inputs["log_dirs"] else None
    yield from check_machine(inputs.now_ms, _spark_settings())
    found, usable = warm_up.status()
    fix = "" if usable else "kafka-log-compaction warm-up makes it; runs work without it"
    yield Check(MACHINE, warm_up.KERNELS, State.OK if usable else State.NOTE, found, fix)
    if request is not None:
        from compaction.checkup.log_health import check_log_dirs

        yield from check_log_dirs(request, cleaner, quick=inputs["quick"])


def _spark_settings() -> Mapping[str, str]:
    """The user's settings of a session that a command would start here."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from compaction.engines.spark_session import submitted_settings

        return submitted_settings()
    from compaction.startup import configured

    return configured(os.environ)


def _cleaner_log(paths: Sequence[str]) -> CleanerLog:
    from compaction.checkup.log_health import read_broker_log

    def lines() -> Iterator[str]:
        for path in paths:
            try:
                with Path(path).open(encoding="utf-8", errors="replace") as opened:
                    yield from opened
            except OSError as error:
                message = f"--broker-log: cannot be read: {error.strerror}"
                raise UsageError(message, path=path, hint="give the broker's log-cleaner.log") from error

    return read_broker_log(lines())


def _body(arguments: argparse.Namespace) -> int:
    as_text, screen = arguments.output == TEXT, execution.screen(arguments)
    checks: list[Check] = []
    for check in _checks(arguments.log_dirs, OPTIONS.complete(vars(arguments))):
        if as_text:
            # some checks take a long time
            screen.print(check_lines(check, checks[-1].area if checks else None, screen.style))
            sys.stdout.flush()
        checks.append(check)
    checkup = Checkup(tuple(checks), arguments.show_topics)
    print(checkup.summary() if as_text else checkup.to_json().rstrip("\n"))
    return checkup.exit_code


main = partial(execution.run_command, OPTIONS, _body)
