"""Checks what runs depend on: the machine, log directories, and logs whose cleaner has died; says what to fix.

Run it with ``spark-submit jobs/doctor.py --help``, or with ``python``: no Spark session is started.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.errors import UsageError  # noqa: E402 - the checkout must be on the path first
from compaction.printable import printable, printable_json  # noqa: E402

from . import _arguments, _command, _options, warm_up  # noqa: E402

if TYPE_CHECKING:
    from compaction.checkup.broker_log import CleanerLog
    from compaction.checkup.check import Check

_DESCRIPTION = """\
Check what runs depend on: Java, Python's packages, caches, memory, free space, the clock, and what
other users can do to a run; with --log-dir also log directories: locks, leftovers, unreadable logs,
and logs whose cleaner has died. No file is changed.

A broker keeps in memory which partitions its cleaner has given up. At rest there are three signs:
the broker's log names them (--broker-log); a batch in the cleanable range is damaged; or a log was
cleanable for more than a day when the broker wrote it last.
"""

_EPILOG = """\
exit status:
  0  nothing needs to be fixed; notes are worth knowing
  1  something needs to be fixed: the lines say how
  2  usage error (option, configuration, no such directory or file, no log selected)

examples:
  Can runs start on this machine?
    kafka-log-compaction doctor

  Did a cleaner die, and on which partitions?
    kafka-log-compaction doctor --log-dir /var/lib/kafka/data --broker-log /opt/kafka/logs/log-cleaner.log
"""

_WARM_UP = "kafka-log-compaction warm-up"
_NAME_WIDTH = 14


def parser() -> _options.Parser:
    """The options of the command."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    group = options.add_argument_group("which logs")
    text = "log directories at rest, or of a running broker; may be repeated; without it, only the machine is checked"
    _options.add_list(group, "--log-dir", "DIR", text)
    _options.add_names(group)
    text = "the broker's log-cleaner.log or server.log, older files first; may be repeated"
    _options.add_list(group, "--broker-log", "FILE", text)
    group.add_argument("--quick", action="store_true", help="do not read the cleanable ranges of logs for damage")
    _options.add_configuration(options)
    options.set_defaults(dry_run=True)
    group = options.add_argument_group("output")
    group.add_argument("--output", choices=("text", "json"), default="text", help="format of the result (default: %(default)s)")
    _options.add_logging(group)
    return options


def examine(arguments: argparse.Namespace) -> Iterator[Check]:
    """All checks of the call.

    :raises UsageError: the call is wrong
    """
    from compaction.checkup.check import Check, State
    from compaction.checkup.machine import MACHINE, check_machine

    cleaner = _cleaner_log(arguments.broker_log)
    if cleaner is not None and not arguments.log_dir:
        raise UsageError("--broker-log needs --log-dir", hint="give the log directories of that broker")
    request = _arguments.read_request(arguments) if arguments.log_dir else None
    yield from check_machine(_arguments.as_of_ms(arguments), _spark_settings())
    for part in warm_up.status():
        state = State.OK if part.usable else State.NOTE
        yield Check(MACHINE, part.name, state, part.found, "" if part.usable else f"{_WARM_UP} makes it; runs work without it")
    if request is not None:
        from compaction.checkup.log_health import check_log_dirs

        yield from check_log_dirs(request, cleaner, quick=arguments.quick)


def _spark_settings() -> Mapping[str, str]:
    """The user's settings of a session that a command would start here."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from compaction.spark.session import submitted_settings

        return submitted_settings()
    from compaction.startup.protection import configured

    return configured(os.environ)


def _cleaner_log(paths: Sequence[str]) -> CleanerLog | None:
    if not paths:
        return None
    from compaction.checkup.broker_log import read_broker_log

    def lines() -> Iterator[str]:
        for path in paths:
            try:
                with Path(path).open(encoding="utf-8", errors="replace") as opened:
                    yield from opened
            except OSError as error:
                what = f"--broker-log: cannot be read: {error.strerror}"
                raise UsageError(what, path=path, hint="give the broker's log-cleaner.log") from error

    return read_broker_log(lines())


def show(checks: Iterator[Check], output: str) -> int:
    """Print the checks as they are made; returns the exit code."""
    found: list[Check] = []
    for check in checks:
        if output == "text":
            if not found or found[-1].area != check.area:
                print(printable(check.area))
            print("\n".join(_lines(check)), flush=True)
        found.append(check)
    bad, notes = (sum(check.state.value == state for check in found) for state in ("bad", "note"))
    if output == "json":
        checks_json = [{**asdict(check), "state": check.state.value} for check in found]
        print(printable_json(json.dumps({"schema_version": 1, "problems": bad, "notes": notes, "checks": checks_json})))
    else:
        print(f"{_plural(bad, 'problem')}, {_plural(notes, 'note')}")
    return _command.FAILED if bad else 0


def _lines(check: Check) -> Iterator[str]:
    yield printable(f"  {check.state.value:<5} {check.name:<{_NAME_WIDTH}} {check.found}")
    if check.fix:
        yield printable(f"        fix: {check.fix}")


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    :param argv: the options; ``None`` for those of the process
    """
    return _command.run_command(parser(), argv, lambda arguments: show(examine(arguments), arguments.output))


if __name__ == "__main__":
    sys.exit(main())
