"""Compacts the logs of Kafka log directories at rest, as the broker's own log cleaner would.

Run it with ``spark-submit jobs/compact.py --help``.
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
from compaction.logdir.discover import Selector  # noqa: E402
from compaction.report import RunReport  # noqa: E402 - the checkout must be on the path first
from jobs import _cli, _logging  # noqa: E402

if TYPE_CHECKING:
    from compaction.spark.session import Session

#: starts a Spark session when it comes to that
SessionFactory = Callable[[], "Session"]

_DESCRIPTION = """\
Compact Kafka logs at rest: of each key the latest record stays, exactly as the log cleaner of
Kafka 4.3.0 would leave it. The result is a log that a broker loads and consumers read.

A log is cleaned when its cleanup.policy includes compact and its share of dirty bytes is over
min.cleanable.dirty.ratio, or max.compaction.lag.ms has passed. A log whose policy nothing says is
skipped, and counted apart. The last segment of a log is its active one and stays as it is. Where
cleanup.policy includes delete as well, expired segments go first. Logs are replaced in place;
after a crash at any moment a broker or a second run finds every surviving record.
"""

_EPILOG = f"""\
{_cli.CONFIGURATION_HELP}
{_cli.EXIT_HELP}
examples:
  What would be cleaned in a stopped broker's directory, and why?
    spark-submit jobs/compact.py --log-dir /var/lib/kafka --config server.properties --dry-run

  Clean a consumer offsets topic that has grown, however little of it is dirty:
    spark-submit jobs/compact.py --log-dir /var/lib/kafka --topic __consumer_offsets \\
        --set min.cleanable.dirty.ratio=0

  Shrink an export to another place before it is shipped, its last segments included:
    spark-submit jobs/compact.py --log-dir /exports/orders --set cleanup.policy=compact \\
        --include-active --output-dir /exports/orders-compacted --report orders.json

  The same bytes again for the same schedule slot:
    spark-submit jobs/compact.py --log-dir /backup/kafka --as-of-ms 1735689600000
"""


def parser() -> _cli.Parser:
    """The command's options."""
    options = _cli.Parser(_DESCRIPTION, _EPILOG)
    _cli.add_selectors(options)
    _cli.add_configuration(options)
    group = _cli.add_run_options(options)
    group.add_argument(
        "--output-dir",
        metavar="DIR",
        default=None,
        help="write the cleaned logs there and leave the source as it is; the directory appears complete or not at all",
    )
    group.add_argument(
        "--include-active",
        action="store_true",
        help="the directories are exports that no broker will append to: clean the last segment of each log too",
    )
    group.add_argument(
        "--allow-keyless", action="store_true",
        help="clean a log even where many of its records have no key: compaction drops those, and refuses such a log otherwise",
    )  # fmt: skip
    group.add_argument(
        "--verify", action="store_true",
        help="then prove by jobs/verify.py's means that nothing was lost or changed; exit with 1 where that does not hold",
    )  # fmt: skip
    return options


def read_request(arguments: argparse.Namespace) -> CompactionRequest:
    """The checked request.

    :raises UsageError: the call is wrong
    """
    resolver = _cli.read_resolver(arguments)
    selector = _cli.read_selector(arguments)
    log_dirs = _cli.read_log_dirs(arguments, selector)
    return CompactionRequest(
        log_dirs=log_dirs,
        as_of_ms=_cli.as_of_ms(arguments),
        topics=selector.topics,
        partitions=selector.partitions,
        resolver=resolver,
        metadata_dirs=_cli.read_metadata_dirs(arguments),
        dry_run=arguments.dry_run,
        output_dir=_cli.check_output_dir(arguments.output_dir, log_dirs),
        include_active=arguments.include_active,
        allow_keyless=arguments.allow_keyless,
    )


def compact(session_factory: SessionFactory, request: CompactionRequest) -> RunReport:
    """Runs the cleaner; Spark is imported no sooner than that, so that a wrong call is told at once."""
    from compaction.startup import background

    session_factory = _cli.ahead(session_factory, request.log_dirs, Selector(request.topics, request.partitions))
    background.compile_kernels(*background.PASSES)
    from compaction.spark import runs
    from compaction.spark.progress import Progress

    with Progress(_logging.progress_stream()) as progress:
        return runs.compact(session_factory, request, progress)


def verify_run(request: CompactionRequest, report: RunReport) -> int:
    """Certifies what a run left, a line a log; the exit code."""
    from compaction.certifier.after_compact import requests
    from jobs.verify import show, verify

    codes = [show(verify(lambda: _cli.start_session("compact"), each)) for each in requests(request, report)]
    return max(codes, default=0)


def main(argv: Sequence[str] | None = None, run: Callable[[SessionFactory, CompactionRequest], RunReport] = compact) -> int:
    """Runs the command; returns its exit code.

    :param argv: the options, those of the process when ``None``
    :param run: carries out a request
    """

    def body(arguments: argparse.Namespace) -> int:
        request = read_request(arguments)
        if arguments.verify:
            from compaction.certifier.after_compact import require_sources

            require_sources(request)
        report = run(lambda: _cli.start_session("compact"), request)
        code = _cli.finish(report, arguments.report, arguments.metrics)
        return max(code, verify_run(request, report)) if arguments.verify else code

    return _cli.run_command(parser(), argv, body)


if __name__ == "__main__":
    sys.exit(main())
