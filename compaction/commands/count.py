"""``count``: counts records, distinct keys and tombstones of logs at rest, exactly, and names the largest keys."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING

from compaction.cli import execution
from compaction.counting.count_report import CountReport
from compaction.engine_choice import ENCRYPTED, chosen
from compaction.files.mixed import file_system
from compaction.log.access import Purpose, access
from compaction.options.inputs import Inputs, find_logs, read_private_keys, read_selector
from compaction.options.option import CommandOptions
from compaction.options.table import HTML, LOG_DIRS, MESSAGES, OUTPUT, CountOptions
from compaction.options.values import Texts
from compaction.screen.amounts import counted
from compaction.screen.steps import step

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DESCRIPTION = """\
Count the records, distinct keys and tombstones of logs at rest exactly; with --top, name the
largest keys. Logs are read as a consumer with read_committed reads them: from the log start to the
last stable offset, without control records and aborted data. With --isolation-level
read_uncommitted, they are read to the high watermark, with aborted data. Keys are compared byte by
byte. If several partitions of a topic have the same key, the topic counts it once. No file is
changed. A broker may be at work: the figures are then a snapshot.

With --bytes, the report also shows where the bytes of the .log files are, of all stored records,
exactly: in keys, values, headers, overhead of records and batches, and what compression saves; in
live and superseded records and tombstones, by age; in values by size; in headers, producers and
groups of keys. A record's stored bytes are its part of its batch in the file.
"""

_EPILOG = """\
columns:
  records       those that a consumer would read; the rule is below the table
  keys          distinct keys; those of a topic are distinct in the topic
  deleted keys  keys whose newest record in its partition is a tombstone
  tombstones    records with a key and without a value
  no key        records without a key
  data          keys and values, uncompressed; --output json has the number of bytes

exit status:
  0  done
  1  a log cannot be read; the others were counted
  2  usage error (option, no such directory, no log selected)

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

#: headers, producers and groups of keys that are named, if --top is not larger
_NAMED = 10

OPTIONS = CommandOptions("count", CountOptions, LOG_DIRS, HTML, OUTPUT, MESSAGES, description=_DESCRIPTION, epilog=_EPILOG)


@OPTIONS.function
def count(log_dirs: Texts, **options: Unpack[CountOptions]) -> CountReport:
    """Counts records and distinct keys of logs at rest, as a consumer with ``isolation_level`` would read them.

    >>> compaction.count(log_dir, top=1).to_dict()["topics"][0]["keys"]
    3

    The parameters are the options of ``kafka-log-compaction count``, see ``compact``.

    :param top: the number of the largest keys to name, of each topic; keys may be personal data
    :param by_partition: the text has a line for each partition
    :param stored: count the bytes of ``.log`` files, too (``--bytes``): those of all stored records
    :raises UsageError: an argument is invalid
    """
    from compaction.counting.count_logs import GROUPS, HEADER_NAMES, KEYS, PRODUCERS, StoredRequest, count_logs, plan_count
    from compaction.counting.key_totals import KeyGroups, Largest
    from compaction.source.read_plan import ReadRequest

    inputs = Inputs.of(OPTIONS, options, log_dirs=log_dirs)
    stored, isolation_level = options["stored"], options["isolation_level"]
    groups = None if options["group_by"] is None else KeyGroups.parse(options["group_by"])
    read_private_keys(inputs["private_keys"])
    directories, logs = find_logs(inputs, read_selector(inputs))
    request = ReadRequest.parse({"paths": json.dumps(directories), "isolation.level": isolation_level})
    measure = "stored_bytes" if stored and options["by"] == "bytes" else options["by"]
    named = Largest(max(options["top"], _NAMED), measure)
    largest = {KEYS: Largest(options["top"], measure), **dict.fromkeys((GROUPS, PRODUCERS, HEADER_NAMES), named)}
    with (
        chosen(inputs, ENCRYPTED) as engine,
        access(file_system(directories), directories, Purpose.READ) as held,
        engine.running() as start,
    ):
        step(f"counting {counted(len(logs), 'log')}")
        plan = plan_count(logs, request, StoredRequest(inputs.now_ms, groups) if stored else None)
        count_logs(start(), plan, largest)
    return CountReport(plan, isolation_level, options["by_partition"], stored, groups, inputs.now_ms, held.in_use)


def _body(arguments: argparse.Namespace) -> int:
    return execution.finish(OPTIONS.run(vars(arguments)), arguments)


main = partial(execution.run_command, OPTIONS, _body)
