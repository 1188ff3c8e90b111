"""``count``: counts records, distinct keys and tombstones of logs at rest, exactly, and names the largest keys."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compaction.api.engine_choice import AUTO, ENCRYPTED, Engine, chosen, progress
from compaction.api.inputs import Inputs, Texts, Time, find_logs, read_selector
from compaction.cli import execution, log_lines, option_groups
from compaction.counting.count_report import CountReport
from compaction.errors import UsageError
from compaction.locking.access import Purpose, access
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.storage.calls import call
from compaction.storage.mixed import file_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION = """\
Count the records, distinct keys and tombstones of logs at rest exactly; with --top, name the
largest keys. Logs are read as a consumer reads them: from the log start to the high watermark,
without control records, and with --isolation-level read_committed also without aborted data and
open transactions. Keys are compared byte by byte. If several partitions of a topic have the same
key, the topic counts it once. No file is changed.

With --bytes, all records are counted that are stored, and the report shows where the bytes of the
.log files are, exactly: in keys, values, headers, overhead of records and batches, and what
compression saves; in live and superseded records and tombstones, by age; in values by size; in
headers, producers and groups of keys. A record's stored bytes are its part of its batch in the file.
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

  Where do the bytes of a topic go, by the part of the key before the hyphen?
    kafka-log-compaction count --log-dir /var/lib/kafka/data --topic orders --bytes \\
      --group-by 'regex:^(\\w+)-'

  The same as a page, with the largest keys:
    kafka-log-compaction count --log-dir /var/lib/kafka/data --topic orders --bytes --top 10 \\
      --html orders.html

  Every partition, as JSON:
    kafka-log-compaction count --log-dir /var/lib/kafka/data --output json
"""

_MOST_KEYS = 1000
#: headers, producers and groups of keys that are named, if --top is not larger
_NAMED = 10


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
    group.add_argument(
        "--bytes", action="store_true", dest="stored", help="show where the bytes of the .log files are, of all stored records"
    )  # fmt: skip
    group.add_argument(
        "--group-by", metavar="GROUPS",
        help="with --bytes: sums by group of keys: prefix:BYTES; regex:EXPRESSION, by its first group or its match; window, by"
        " the start of the window of a windowed key of Kafka Streams; window-store, the same in a store's changelog",
    )  # fmt: skip
    group.add_argument(
        "--as-of", metavar="TIME",
        help="with --bytes: count the ages of records up to this time, e.g. 2026-11-22T02:00Z (default: now)",
    )  # fmt: skip
    option_groups.add_file(group, "--html", "with --bytes: write a self-contained HTML page of where the bytes are")
    group.add_argument("--partitions", action="store_true", dest="by_partition", help="also print a line for each partition")
    group.add_argument("--output", choices=("text", "json"), default="text", help="format of the result (default: %(default)s)")
    option_groups.add_engine(group)
    option_groups.add_logging(group)
    return options


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_KEYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {_MOST_KEYS}")
    return int(text)


@call()
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
    stored: bool = False,
    group_by: str | None = None,
    as_of: Time | None = None,
    engine: str | Engine = AUTO,
    cores: int | None = None,
    spark: SparkSession | None = None,
) -> CountReport:
    """Counts records and distinct keys of logs at rest, as a consumer would read them.

    >>> compaction.count(log_dir, top=1).to_dict()["topics"][0]["keys"]
    3

    The parameters are the options of ``kafka-log-compaction count``, see ``compact``.

    :param top: the number of the largest keys to name, of each topic; keys may be personal data
    :param by_partition: the text has a line for each partition
    :param stored: count the bytes of ``.log`` files too (``--bytes``), with all records that are stored
    :raises UsageError: an argument is invalid, or a live broker holds a log directory
    """
    from compaction.counting.count_logs import StoredRequest, count_logs, plan_count
    from compaction.counting.key_groups import KeyGroups
    from compaction.counting.key_totals import Largest
    from compaction.counting.task_totals import GROUPS, HEADER_NAMES, KEYS, PRODUCERS
    from compaction.source.read_plan import READ_UNCOMMITTED, ReadRequest

    inputs = Inputs.of("count", locals())
    if not stored and (group_by is not None or as_of is not None):
        raise UsageError("group_by and as_of are parameters of a count of bytes", hint="add --bytes")
    if stored and isolation_level != READ_UNCOMMITTED:
        raise UsageError("a count of bytes is of all stored records", hint="omit --isolation-level")
    groups = None if group_by is None else KeyGroups.parse(group_by)
    directories, logs = find_logs(inputs, read_selector(inputs))
    request = ReadRequest.parse({"paths": json.dumps(directories), "isolation.level": isolation_level})
    measure = "stored_bytes" if stored and by == "bytes" else by
    named = Largest(max(top, _NAMED), measure)
    largest = {KEYS: Largest(top, measure), **dict.fromkeys((GROUPS, PRODUCERS, HEADER_NAMES), named)}
    with (
        chosen(engine, "count", spark=spark, settings=ENCRYPTED, cores=cores) as tasks,
        access(file_system(directories), directories, Purpose.COPY),
        progress() as progress_display,
    ):
        step(f"counting {counted(len(logs), 'log')}")
        plan = plan_count(logs, request, StoredRequest(inputs.now_ms, groups) if stored else None)
        count_logs(tasks.passes(progress_display)(), plan, largest)
    return CountReport(plan, isolation_level, by_partition, stored, groups, inputs.now_ms)


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
        if arguments.html is not None and not arguments.stored:
            raise UsageError("--html shows where the bytes are", hint="add --bytes")
        report = count(**execution.call_parameters(count, arguments) | ({} if engine is None else {"engine": engine}))
        return execution.finish([(arguments.html, report.to_html)], lambda: _show(report, arguments), report.exit_code)

    return execution.run_command(parser(), argv, body)
