"""Applies the delete policy to the logs of Kafka log directories at rest, as a broker would.

Run it with ``spark-submit jobs/expire.py --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compaction.config.request import CompactionRequest  # noqa: E402
from compaction.report import RunReport  # noqa: E402 - the checkout must be on the path first
from jobs import _cli  # noqa: E402

if TYPE_CHECKING:
    from compaction.spark.session import Session

#: starts a Spark session when it comes to that
SessionFactory = Callable[[], "Session"]

_DESCRIPTION = """\
Apply Kafka's delete policy to logs at rest: segments go, oldest first, that end below the log
start, then what is over retention.bytes, then what is older than retention.ms, exactly as
Kafka 4.3.0 decides. Segments below the log start go from every log, the others only where
cleanup.policy includes delete. A log whose policy nothing says fails and is left as it is.

The age of a segment is that of its newest record, by its time index, or else of its file.
Where every segment goes, an empty one takes over. Files become .deleted first and go with the
next run, or at once where file.delete.delay.ms is 0; log start, leader epochs and producer
snapshots follow.
"""

_EPILOG = f"""\
{_cli.CONFIGURATION_HELP}
{_cli.EXIT_HELP}
examples:
  What has expired in a stopped broker's directory?
    spark-submit jobs/expire.py --log-dir /var/lib/kafka --config server.properties --dry-run

  One of a broker's several log.dirs, whose metadata log is in another one?
    spark-submit jobs/expire.py --log-dir /disk2/kafka --metadata /disk1/kafka --dry-run

  Keep three days of one topic, whatever is configured:
    spark-submit jobs/expire.py --log-dir /backup/kafka --topic page-views \\
        --set cleanup.policy=delete --set retention.ms=259200000

  The same again for the same schedule slot:
    spark-submit jobs/expire.py --log-dir /backup/kafka --as-of-ms 1735689600000
"""


def parser() -> _cli.Parser:
    """The command's options."""
    options = _cli.Parser(_DESCRIPTION, _EPILOG)
    _cli.add_selectors(options)
    _cli.add_configuration(options)
    _cli.add_run_options(options)
    return options


def read_request(arguments: argparse.Namespace) -> CompactionRequest:
    """The checked request.

    :raises UsageError: the call is wrong
    """
    resolver = _cli.read_resolver(arguments)
    selector = _cli.read_selector(arguments)
    return CompactionRequest(
        log_dirs=_cli.read_log_dirs(arguments, selector),
        as_of_ms=_cli.as_of_ms(arguments),
        topics=selector.topics,
        partitions=selector.partitions,
        resolver=resolver,
        metadata_dirs=_cli.read_metadata_dirs(arguments),
        dry_run=arguments.dry_run,
    )


def expire(session_factory: SessionFactory, request: CompactionRequest) -> RunReport:
    """Runs the delete policy; Spark is imported no sooner than that, so that a wrong call is told at once."""
    from compaction.spark import runs

    return runs.expire(session_factory, request)


def main(argv: Sequence[str] | None = None, run: Callable[[SessionFactory, CompactionRequest], RunReport] = expire) -> int:
    """Runs the command; returns its exit code.

    :param argv: the options, those of the process when ``None``
    :param run: carries out a request
    """

    def body(arguments: argparse.Namespace) -> int:
        request = read_request(arguments)
        return _cli.finish(run(lambda: _cli.start_session("expire"), request), arguments.report, arguments.metrics)

    return _cli.run_command(parser(), argv, body)


if __name__ == "__main__":
    sys.exit(main())
