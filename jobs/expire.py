"""Applies the delete policy to the logs of Kafka log directories at rest as a broker would.

Run it with ``spark-submit jobs/expire.py --help``. ``compaction.engine.delete`` has the steps of a run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.config.request import CompactionRequest  # noqa: E402 - the checkout must be on the path first
from compaction.report import RunReport  # noqa: E402

from . import _arguments, _command, _options, _output_layout  # noqa: E402
from ._command import SessionFactory  # noqa: E402

_DESCRIPTION = """\
Apply Kafka's delete policy to logs at rest: delete segments, oldest first, that end below the log
start offset, then those over retention.bytes, then those older than retention.ms, exactly as
Kafka 4.4.0 decides. Segments below the log start offset are deleted from every log, the others
only if cleanup.policy includes delete. A log of unknown cleanup.policy fails and is not changed.

The age of a segment is that of its newest record, by its time index, or else of its file. If all
segments are deleted, an empty one is created. Files are renamed to .deleted first and removed by
the next run, or at once if file.delete.delay.ms is 0; log start offset, leader epochs and producer
snapshots are updated. With --output-dir the source is not changed, and its logs are copied without
their expired segments; a log that fails is not in the copy.
"""

_EPILOG = f"""\
{_options.CONFIGURATION_HELP}
{_options.EXIT_HELP}
examples:
  What has expired in a stopped broker's directory?
    kafka-log-compaction expire --log-dir /var/lib/kafka --config server.properties --dry-run

  One of a broker's several log.dirs, whose metadata log is in another one?
    kafka-log-compaction expire --log-dir /disk2/kafka --metadata /disk1/kafka --dry-run

  Keep three days of one topic, whatever is configured:
    kafka-log-compaction expire --log-dir /backup/kafka --topic page-views \\
        --set cleanup.policy=delete --set retention.ms=3d

  Copy what has not expired to another place, also from or to an object store:
    kafka-log-compaction expire --log-dir s3://backups/kafka --output-dir s3://backups/kafka-expired \\
        --config server.properties

  Repeat the run for the same schedule slot:
    kafka-log-compaction expire --log-dir /backup/kafka --as-of 2026-11-22T02:00Z
"""


def parser() -> _options.Parser:
    """The command's options."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    _options.add_selectors(options)
    _options.add_configuration(options)
    _options.add_output(_options.add_run_options(options))
    return options


def read_request(arguments: argparse.Namespace) -> CompactionRequest:
    """The checked request.

    :raises UsageError: an argument is invalid
    """
    return _arguments.with_output("expire", arguments, _arguments.read_request(arguments))


def expire(session_factory: SessionFactory, request: CompactionRequest) -> RunReport:
    """Applies the delete policy. Spark, which only reads very many segments, is imported here and not before, so that a run
    without logs, or with a usage error, ends at once."""
    if (report := _command.report_without_logs(request)) is not None:
        return report
    from compaction.engine.clean import parallel_read
    from compaction.engine.delete import delete_old_segments

    return delete_old_segments(request, parallel_read(_command.passes(session_factory)))


def main(argv: Sequence[str] | None = None, run: Callable[[SessionFactory, CompactionRequest], RunReport] = expire) -> int:
    """Runs the command; returns its exit code.

    :param argv: the arguments; ``None``: those of the process
    :param run: executes a request
    """

    def body(arguments: argparse.Namespace) -> int:
        request = read_request(arguments)
        if arguments.if_done and _command.is_done(request, arguments):
            return 0
        report = run(_command.Engine.of(arguments, "expire"), request)
        return _command.write_report(report, arguments)

    return _command.run_command(parser(), argv, lambda arguments: _output_layout.in_layout(arguments, body))


if __name__ == "__main__":
    sys.exit(main())
