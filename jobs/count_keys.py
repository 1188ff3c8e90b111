"""Counts records, distinct keys and tombstones of logs at rest, exactly, and names the largest keys.

Run it with ``spark-submit jobs/count_keys.py --help``, or with ``python``: a Spark session is started only for many bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.locking.access import Purpose, access  # noqa: E402 - the checkout must be on the path first
from compaction.printable import printable, printable_json  # noqa: E402
from compaction.stores.mixed import file_system  # noqa: E402

from . import _arguments, _command, _logging, _options  # noqa: E402

if TYPE_CHECKING:
    from compaction.source.count_logs import CountPlan, CountRunner, LogCount, TopicCount
    from compaction.source.key_totals import KeyCount, RecordCounts

_DESCRIPTION = """\
Count the records of logs at rest, their distinct keys and tombstones, exactly, and name the largest
keys. Logs are read as a consumer reads them: from the log start to the high watermark, without
control records, and with --isolation-level read_committed without aborted data and open
transactions. Keys are compared byte by byte. A key that several partitions of a topic have is one
key of the topic. No file is changed.
"""

_EPILOG = """\
columns:
  records     as a consumer would read them
  keys        distinct keys; those of a topic are distinct in the topic
  deleted     keys whose newest record in its partition is a tombstone
  tombstones  records with a key and without a value
  no key      records without a key
  bytes       keys and values, uncompressed

exit status:
  0  done
  1  a log cannot be read; the others were counted
  2  usage error (option, no such directory, no log selected, a live broker holds the lock)

examples:
  How many keys do the topics have, and which are the largest?
    kafka-log-compaction count --log-dir /var/lib/kafka/data --topic 'orders.*'

  Every partition, as JSON, without naming keys:
    kafka-log-compaction count --log-dir /var/lib/kafka/data --top 0 --output json
"""

_COLUMNS = ("records", "keys", "deleted", "tombstones", "no key", "bytes")
_NAME_WIDTH = 16
#: of figures: a line has 80 characters
_WIDTHS = (12, 11, 9, 11, 8, 13)
_KEY_CHARACTERS = 48
#: with less, a session takes longer to start than the work
_WORTH_SPARK_BYTES = 256 << 20
_MOST_KEYS = 1000


def parser() -> _options.Parser:
    """The options of the command."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    _options.add_selectors(options)
    group = options.add_argument_group("what to count, and how to show it")
    group.add_argument(
        "--isolation-level", choices=("read_uncommitted", "read_committed"), default="read_uncommitted",
        help="read_committed: without aborted data, and only up to the last stable offset (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--top", metavar="N", type=_number, default=5, help="name the N largest keys of each topic (default: %(default)s)"
    )
    group.add_argument(
        "--by", choices=("bytes", "records"), default="bytes", help="what makes a key large (default: %(default)s)"
    )
    group.add_argument("--partitions", action="store_true", help="also print a line for each partition")
    group.add_argument("--output", choices=("text", "json"), default="text", help="format of the result (default: %(default)s)")
    _options.add_logging(group)
    return options


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_KEYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {_MOST_KEYS}")
    return int(text)


def count(arguments: argparse.Namespace, session_factory: _command.SessionFactory) -> CountPlan:
    """Count the logs that the arguments select.

    :raises UsageError: the call is wrong, or a live broker holds a log directory
    """
    from compaction.source.count_logs import LocalCountRunner, count_logs, plan_count
    from compaction.source.key_totals import Largest
    from compaction.source.read_plan import ReadRequest

    log_dirs, logs = _arguments.find_logs(arguments, _arguments.read_selector(arguments))
    request = ReadRequest.parse({"paths": json.dumps(log_dirs), "isolation.level": arguments.isolation_level})
    with access(file_system(log_dirs), log_dirs, Purpose.COPY):
        plan = plan_count(logs, request)
        runner: CountRunner = LocalCountRunner()
        if sum(task.read.size_bytes for task in plan.tasks) >= _WORTH_SPARK_BYTES:
            from compaction.spark.count_job import SparkCountRunner

            runner = SparkCountRunner(session_factory().sparkContext)
        count_logs(runner, plan, Largest(arguments.top, arguments.by))
    return plan


def lines(plan: CountPlan, *, partitions: bool) -> Iterator[str]:
    """The result as text."""
    width = max(map(len, ("topic", *(name for topic in plan.topics for name in _names(topic, partitions=partitions)))))
    width = min(width, _NAME_WIDTH)
    yield _line("topic", _COLUMNS, width)
    for topic in plan.topics:
        deleted = sum(log.deleted_keys for log in topic.logs)
        yield _line(topic.topic, ["failed"] if topic.failed else _figures(topic.counts, topic.keys, deleted), width)
        if partitions:
            for log in topic.logs:
                figures = ["failed"] if log.error is not None else _figures(log.counts, log.keys, log.deleted_keys)
                yield _line(f"  {log.location.topic_partition.partition}", figures, width)
    for topic in plan.topics:
        if topic.largest and not topic.failed:
            yield ""
            yield f"largest keys of {printable(topic.topic)}:"
            yield from (f"{each.bytes:>15,} bytes {each.records:>12,} records  {_shown(each.key)}" for each in topic.largest)


def _names(topic: TopicCount, *, partitions: bool) -> list[str]:
    return [topic.topic, *(f"  {log.location.topic_partition.partition}" for log in topic.logs if partitions)]


def _line(name: str, figures: Sequence[str], width: int) -> str:
    """A line of the table; a longer name has its own line."""
    name = printable(name)
    head = f"{name:<{width}}" if len(name) <= width else f"{name}\n{'':<{width}}"
    return head + "".join(f" {figure:>{size - 1}}" for figure, size in zip(figures, _WIDTHS, strict=False))


def _figures(counts: RecordCounts, keys: int, deleted: int) -> list[str]:
    return [f"{each:,}" for each in (counts.records, keys, deleted, counts.tombstones, counts.keyless, counts.bytes)]


def _shown(key: bytes) -> str:
    """A key on one line: text, or hexadecimal if it is not UTF-8."""
    try:
        text = printable(key.decode())
    except UnicodeDecodeError:
        text = f"0x{key.hex()}"
    return text if len(text) <= _KEY_CHARACTERS else f"{text[:_KEY_CHARACTERS]}… ({len(key):,} bytes)"


def document(plan: CountPlan, arguments: argparse.Namespace) -> str:
    """The result as JSON."""
    topics = [_topic_json(topic) for topic in plan.topics]
    return printable_json(json.dumps({"schema_version": 1, "isolation_level": arguments.isolation_level, "topics": topics}))


def _topic_json(topic: TopicCount) -> dict[str, Any]:
    logs = [_log_json(log) for log in topic.logs]
    if topic.failed:
        return {"topic": topic.topic, "status": "failed", "partitions": logs}
    figures = {**asdict(topic.counts), "keys": topic.keys, "deleted_keys": sum(log.deleted_keys for log in topic.logs)}
    return {"topic": topic.topic, "status": "counted", **figures, "largest_keys": _keys_json(topic.largest), "partitions": logs}


def _log_json(log: LogCount) -> dict[str, Any]:
    where = {"partition": log.location.topic_partition.partition, "log_dir": log.location.log_dir}
    if log.error is not None:
        return {**where, "status": "failed", "reason": log.error}
    figures = {**asdict(log.counts), "keys": log.keys, "deleted_keys": log.deleted_keys}
    return {**where, "status": "counted", **figures, "largest_keys": _keys_json(log.largest)}


def _keys_json(keys: Sequence[KeyCount]) -> list[dict[str, Any]]:
    return [{**each._asdict(), "key": _encoded(each.key)} for each in keys]


def _encoded(key: bytes) -> dict[str, str]:
    try:
        return {"text": key.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(key).decode()}


def show(plan: CountPlan, arguments: argparse.Namespace) -> int:
    """Print the result and the errors; returns the exit code."""
    if arguments.output == "json":
        print(document(plan, arguments))
    else:
        print("\n".join(lines(plan, partitions=arguments.partitions)))
    failed = [log for log in plan.logs if log.error is not None]
    for log in failed:
        _logging.print_error(f"{log.location.topic_partition}: {log.error}")
    return _command.FAILED if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    :param argv: the options; ``None`` for those of the process
    """

    def body(arguments: argparse.Namespace) -> int:
        return show(count(arguments, lambda: _command.start_session("count")), arguments)

    return _command.run_command(parser(), argv, body)


if __name__ == "__main__":
    sys.exit(main())
