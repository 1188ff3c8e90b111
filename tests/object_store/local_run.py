"""The compaction job without Spark, in this process."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

from compaction.cli.parser import Parser
from compaction.commands import compact as job
from compaction.files.calls import call
from compaction.report import RunReport
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.local_passes import LocalPasses

NOW_MS = 1798761600000
COMPACT = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0")
#: the files that a run from disk to disk writes, and its report
OnDisk = tuple[dict[str, bytes], RunReport]


def run(*options: object, sizes: Sizes | None = None, include_active: bool = True) -> RunReport:
    """The job with these options, as of a fixed time."""
    given = [*map(str, options), "--as-of-ms", str(NOW_MS), *(["--include-active"] if include_active else [])]
    arguments = Parser(job.OPTIONS).parse_args(given)
    execute = partial(clean_logs, LocalPasses, sizes=sizes)
    with call(), patch.object(job, "execute", lambda _, request: execute(request)):
        report: RunReport = job.OPTIONS.run(vars(arguments))
        return report


def figures(report: RunReport) -> list[tuple[object, ...]]:
    """What a report says of each log, but for times."""
    logs = sorted(report.logs, key=lambda log: log.name)
    return [(log.name, log.status, log.reason, log.bytes_before, log.bytes_after, log.records_after, log.keys) for log in logs]
