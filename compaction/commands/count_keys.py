"""``count``: counts records, distinct keys and tombstones of logs at rest, exactly, and names the largest keys."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compaction.api.count_report import CountReport
from compaction.api.engine_choice import AUTO, ENCRYPTED, Engine, chosen, progress
from compaction.api.inputs import Inputs, Texts, find_logs, read_selector
from compaction.cli import execution, log_lines, option_groups
from compaction.locking.access import Purpose, access
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.storage.mixed import file_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION = """\
Count the records, distinct keys and tombstones of logs at rest exactly; with --top, name the
largest keys. Logs are read as a consumer reads them: from the log start to the high watermark,
without control records, and with --isolation-level read_committed also without aborted data and
open transactions. Keys are compared byte by byte. If several partitions of a topic have the same
key, the topic counts it once. No file is changed.
"""

_EPILOG = """\
columns:
  records       as a consumer would read them
  keys          distinct keys; those of a topic are distinct in the topic
  deleted keys  keys whose newest record in its partition is a tombstone
  tombstones    records with a key and without a value
  no key        records without a key
  data          keys and values, uncompressed; --output json has the number of bytes

exit status:
  0  done
  1  a log cannot be read; the others were counted
  2  usage error (option, no such directory, no log selected, a live broker holds the lock)

examples:
  How many keys do the topics have, and which are the largest?
    kafka-log-compaction count --log-dir /var/lib/kafka/data --topic 'orders.*' --top 5

  Every partition, as JSON:
    kafka-log-compaction count --log-dir /var/lib/kafka/data --output json
"""

_MOST_KEYS = 1000


def parser() -> option_groups.Parser:
    """The options of the command."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    option_groups.add_selectors(options)
    group = options.add_argument_group("counts and output")
    group.add_argument(
        "--isolation-level", choices=("read_uncommitted", "read_committed"), default="read_uncommitted",
        help="read_committed: without aborted data, and only up to the last stable offset (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--top",
        metavar="N",
        type=_number,
        default=0,
        help="name the N largest keys of each topic; keys may be personal data (default: none)",
    )
    group.add_argument(
        "--by", choices=("bytes", "records"), default="bytes", help="measure of the size of keys (default: %(default)s)"
    )
    group.add_argument("--partitions", action="store_true", dest="by_partition", help="also print a line for each partition")
    group.add_argument("--output", choices=("text", "json"), default="text", help="format of the result (default: %(default)s)")
    option_groups.add_engine(group)
    option_groups.add_logging(group)
    return options


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_KEYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {_MOST_KEYS}")
    return int(text)


def count(
    log_dirs: Texts,
    *,
    topics: Texts = (),
    partitions: Texts = (),
    allow_empty: bool = False,
    tail: str | None = None,
    private_keys: Texts = (),
    isolation_level: str = "read_uncommitted",
    top: int = 0,
    by: str = "bytes",
    by_partition: bool = False,
    engine: str | Engine = AUTO,
    spark: SparkSession | None = None,
) -> CountReport:
    """Counts records and distinct keys of logs at rest, as a consumer would read them.

    >>> compaction.count(log_dir, top=1).to_dict()["topics"][0]["keys"]
    3

    The parameters are the options of ``kafka-log-compaction count``, see ``compact``.

    :param top: the number of the largest keys to name, of each topic; keys may be personal data
    :param by_partition: the text has a line for each partition
    :raises UsageError: an argument is invalid, or a live broker holds a log directory
    """
    from compaction.source.count_logs import count_logs, plan_count
    from compaction.source.key_totals import Largest
    from compaction.source.read_plan import ReadRequest

    inputs = Inputs.of("count", locals())
    directories, logs = find_logs(inputs, read_selector(inputs))
    request = ReadRequest.parse({"paths": json.dumps(directories), "isolation.level": isolation_level})
    with (
        chosen(engine, "count", spark=spark, settings=ENCRYPTED) as tasks,
        access(file_system(directories), directories, Purpose.COPY),
        progress() as progress_display,
    ):
        step(f"counting {counted(len(logs), 'log')}")
        plan = plan_count(logs, request)
        count_logs(tasks.passes(progress_display)(), plan, Largest(top, by))
    return CountReport(plan, isolation_level, by_partition)


def _show(report: CountReport, arguments: argparse.Namespace) -> None:
    if arguments.output == option_groups.JSON:
        print(report.to_json(), end="")
    else:
        report.print_on(execution.screen(arguments))
    for log in report.failed:
        log_lines.print_error(f"{log.location.topic_partition}: {log.error}")


def main(argv: Sequence[str] | None = None, engine: Engine | None = None) -> int:
    """Runs the command; returns its exit code, see ``compact``."""

    def body(arguments: argparse.Namespace) -> int:
        report = count(**execution.call_parameters(count, arguments) | ({} if engine is None else {"engine": engine}))
        return execution.finish((), lambda: _show(report, arguments), report.exit_code)

    return execution.run_command(parser(), argv, body)
