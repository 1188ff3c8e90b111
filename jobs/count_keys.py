"""Counts records, distinct keys and tombstones of logs at rest, exactly, and names the largest keys.

Run it with ``spark-submit jobs/count_keys.py --help``, or with ``python``.
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
from compaction.screen.amounts import counted, size  # noqa: E402
from compaction.screen.steps import step  # noqa: E402
from compaction.screen.text_table import Column, Line, Row, Style, table  # noqa: E402
from compaction.stores.mixed import file_system  # noqa: E402

from . import _arguments, _command, _logging, _options  # noqa: E402

if TYPE_CHECKING:
    from compaction.source.count_logs import CountPlan, LogCount, TopicCount
    from compaction.source.key_totals import KeyCount, RecordCounts

_DESCRIPTION = """\
Count the records of logs at rest, their distinct keys and tombstones, exactly, and with --top name
the largest keys. Logs are read as a consumer reads them: from the log start to the high watermark, without
control records, and with --isolation-level read_committed without aborted data and open
transactions. Keys are compared byte by byte. A key that several partitions of a topic have is one
key of the topic. No file is changed.
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

_COLUMNS = (
    Column("topic", right=False),
    *(Column(title) for title in ("records", "keys", "deleted keys", "tombstones", "no key", "data")),
)
_KEY_CHARACTERS = 48
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
        "--top", metavar="N", type=_number, default=0,
        help="name the N largest keys of each topic; keys may be personal data (default: none)",
    )
    group.add_argument(
        "--by", choices=("bytes", "records"), default="bytes", help="what makes a key large (default: %(default)s)"
    )
    group.add_argument("--partitions", action="store_true", help="also print a line for each partition")
    group.add_argument("--output", choices=("text", "json"), default="text", help="format of the result (default: %(default)s)")
    _options.add_engine(group)
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
    from compaction.source.count_logs import count_logs, plan_count
    from compaction.source.key_totals import Largest
    from compaction.source.read_plan import ReadRequest

    log_dirs, logs = _arguments.find_logs(arguments, _arguments.read_selector(arguments))
    request = ReadRequest.parse({"paths": json.dumps(log_dirs), "isolation.level": arguments.isolation_level})
    with access(file_system(log_dirs), log_dirs, Purpose.COPY), _command.progress() as progress:
        step(f"counting {counted(len(logs), 'log')}")
        plan = plan_count(logs, request)
        with _command.passes(session_factory, progress) as start:
            count_logs(start(), plan, Largest(arguments.top, arguments.by))
    return plan


def lines(plan: CountPlan, style: Style, *, partitions: bool) -> Iterator[Line]:
    """The result as text."""
    rows = []
    for topic in plan.topics:
        deleted = sum(log.deleted_keys for log in topic.logs)
        rows.append(_row(topic.topic, topic.counts, topic.keys, deleted, failed=topic.failed))
        for log in topic.logs if partitions else ():
            name = f"  {log.location.topic_partition.partition}"
            rows.append(_row(name, log.counts, log.keys, log.deleted_keys, failed=log.error is not None))
    yield from table(_COLUMNS, rows, style)
    for topic in plan.topics:
        if topic.largest and not topic.failed:
            yield Line("")
            yield Line(f"largest keys of {printable(topic.topic)}:")
            for each in topic.largest:
                yield Line(f"{size(each.bytes):>12}  {each.records:>12,} records  {_shown(each.key)}")


def _row(name: str, counts: RecordCounts, keys: int, deleted: int, *, failed: bool) -> Row:
    if failed:
        return Row([name, "failed", *[""] * (len(_COLUMNS) - 2)], "bold red")
    figures = (counts.records, keys, deleted, counts.tombstones, counts.keyless)
    return Row([name, *(f"{each:,}" for each in figures), size(counts.bytes)])


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
    failed = [log for log in plan.logs if log.error is not None]

    def print_it() -> None:
        if arguments.output == "json":
            print(document(plan, arguments))
        else:
            screen = _command.screen(arguments)
            screen.print(lines(plan, screen.style, partitions=arguments.partitions))
        for log in failed:
            _logging.print_error(f"{log.location.topic_partition}: {log.error}")

    return _command.finish((), print_it, _command.FAILED if failed else 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    :param argv: the options; ``None`` for those of the process
    """

    def body(arguments: argparse.Namespace) -> int:
        return show(count(arguments, _command.Engine.of(arguments, "count", _command.ENCRYPTED)), arguments)

    return _command.run_command(parser(), argv, body)


if __name__ == "__main__":
    sys.exit(main())
