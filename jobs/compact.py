"""Cleans the logs of Kafka log directories at rest as the broker's log cleaner would.

Run it with ``spark-submit jobs/compact.py --help``. ``compaction.engine.clean`` has the steps of a run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.config.request import CompactionRequest  # noqa: E402 - the checkout must be on the path first
from compaction.report import LogReport, LogStatus, RunReport  # noqa: E402

from . import _arguments, _command, _logging, _options, _output_layout  # noqa: E402
from ._command import SessionFactory  # noqa: E402

_DESCRIPTION = """\
Compact Kafka logs at rest: keep the latest record of each key, exactly as the log cleaner of
their Kafka version does (2.8 to 4.4). The result is a log that a broker loads and consumers read.

A log is cleaned if its cleanup.policy includes compact, and its dirty ratio is over
min.cleanable.dirty.ratio or max.compaction.lag.ms has passed. A log of unknown cleanup.policy is
skipped, and counted separately. The last segment of a log is its active one and is not cleaned.
If cleanup.policy includes delete as well, expired segments are deleted first. Logs are replaced
in place; after a crash at any point, a broker or a second run finds every surviving record.
"""

_EPILOG = f"""\
{_options.CONFIGURATION_HELP}
{_options.EXIT_HELP}
examples:
  What would be cleaned in a stopped broker's directory, and why?
    kafka-log-compaction compact --log-dir /var/lib/kafka --config server.properties --dry-run

  Clean a consumer offsets topic that has grown, whatever its dirty ratio:
    kafka-log-compaction compact --log-dir /var/lib/kafka --topic __consumer_offsets \\
        --set min.cleanable.dirty.ratio=0

  Shrink an export into another directory before it is shipped, including its last segments:
    kafka-log-compaction compact --log-dir /exports/orders --set cleanup.policy=compact \\
        --include-active --output-dir /exports/orders-compacted --report orders.json

  Of each key retain the record with the highest timestamp in place of the newest one, in a copy (docs/strategies.md):
    kafka-log-compaction compact --log-dir /backup/kafka --topic orders \\
        --set compaction.strategy=timestamp --output-dir /restore/kafka --verify

  Produce the same bytes again for the same schedule slot:
    kafka-log-compaction compact --log-dir /backup/kafka --as-of 2026-11-22T02:00Z
"""


def parser() -> _options.Parser:
    """The command's options."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    _options.add_selectors(options)
    _options.add_configuration(options)
    _options.add_kafka_version(options)
    group = _options.add_run_options(options)
    _options.add_output(group)
    group.add_argument(
        "--include-active", action="store_true",
        help="the directories are exports that no broker will append to: clean the last segment of each log too",
    )  # fmt: skip
    group.add_argument(
        "--allow-keyless", action="store_true",
        help="clean a log even if many of its records have no key: compaction drops those, and refuses such a log otherwise",
    )  # fmt: skip
    group.add_argument(
        "--verify", action="store_true",
        help="afterwards verify as jobs/verify.py does that nothing was lost or changed; exit with 1 if something was",
    )  # fmt: skip
    return options


def read_request(arguments: argparse.Namespace) -> CompactionRequest:
    """The checked request.

    :raises UsageError: an argument is invalid
    """
    request = _arguments.with_output("compact", arguments, _arguments.read_request(arguments))
    return replace(
        request,
        include_active=arguments.include_active,
        allow_keyless=arguments.allow_keyless,
    )


def compact(session_factory: SessionFactory, request: CompactionRequest) -> RunReport:
    """Runs the cleaner. It and Spark are imported here and not before, so that a run without logs, or with a usage error, is
    quick.

    :raises UsageError: there is no Java that Spark runs on; nothing was changed
    """
    if (report := _command.report_without_logs(request)) is not None:
        return report
    _command.require_engine(session_factory)
    from compaction.engine.clean import clean_logs

    with _command.progress() as progress:
        return clean_logs(_command.passes(session_factory, progress), request)


def verify_run(request: CompactionRequest, report: RunReport, arguments: argparse.Namespace) -> int:
    """Verifies the result of a run, with one line per log; returns the exit code. The lines go to standard error if standard
    output has a document."""
    from compaction.certifier.after_compact import requests

    from .verify import show, verify

    print_line = _logging.print_line if arguments.output == _options.JSON else print
    found = (verify(lambda: _command.start_session("compact", _command.ENCRYPTED), each) for each in requests(request, report))
    return max((show(each, print_line=print_line) for each in found), default=0)


def verify_done(request: CompactionRequest, arguments: argparse.Namespace) -> int:
    """Verifies the finished output of an earlier run of the same request, as that run may not have."""
    logs = (LogReport(*log.topic_partition, log.log_dir, LogStatus.CLEANED, "") for log in request.logs)
    return verify_run(request, RunReport("", request.as_of_ms, request.dry_run, tuple(logs)), arguments)


def main(argv: Sequence[str] | None = None, run: Callable[[SessionFactory, CompactionRequest], RunReport] = compact) -> int:
    """Runs the command; returns its exit code.

    :param argv: the arguments; ``None``: those of the process
    :param run: executes a request
    """

    def body(arguments: argparse.Namespace) -> int:
        request = read_request(arguments)
        if arguments.if_done and _command.is_done(request, arguments):
            return verify_done(request, arguments) if arguments.verify else 0
        if arguments.verify:
            from compaction.certifier.after_compact import require_sources

            require_sources(request)
            from compaction.startup.java_version import require_java

            # the verification of large logs runs on Spark
            require_java()
        # verification, by the same session, shuffles whole keys
        engine = _command.Engine.of(arguments, "compact", _command.ENCRYPTED if arguments.verify else {})
        report = run(engine, request)
        code = _command.write_report(report, arguments)
        return max(code, verify_run(request, report, arguments)) if arguments.verify else code

    return _command.run_command(parser(), argv, lambda arguments: _output_layout.in_layout(arguments, body))


if __name__ == "__main__":
    sys.exit(main())
