"""``expire``: applies the delete policy to the logs of Kafka log directories at rest as a broker would.

``compaction.run.expire`` has the steps of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.commands.runs import done_before, logs_done, main_of, report_without_logs, run_on_engine
from compaction.config.request import CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.names import REFERENCE_VERSION
from compaction.options.inputs import Inputs, read_request, with_output
from compaction.options.option import CommandOptions
from compaction.options.table import REPORTED, ExpireOptions
from compaction.options.values import Texts
from compaction.report import RunReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DESCRIPTION = f"""\
Apply Kafka's delete policy to logs at rest: delete segments, oldest first, that end below the log
start offset, then those over retention.bytes, then those older than retention.ms, exactly as
Kafka {REFERENCE_VERSION} decides. Segments below the log start offset are deleted from every log, the others
only if cleanup.policy includes delete. A log of unknown cleanup.policy is not changed and fails.

The age of a segment is that of its newest record, by its time index, or else of its file. If all
segments are deleted, an empty one is created. Files are renamed to .deleted first and removed by
the next run, or at once if file.delete.delay.ms is 0; log start offset, leader epochs and producer
snapshots are updated. With --output-dir the source is not changed, and its logs are copied without
their expired segments; a log that fails is not in the copy.
"""

_EPILOG = """\
examples:
  What has expired in a stopped broker's directory?
    kafka-log-compaction expire --log-dir /var/lib/kafka --config server.properties --dry-run

  The same for one of several log.dirs, with the metadata log in another one:
    kafka-log-compaction expire --log-dir /disk2/kafka --metadata /disk1/kafka --dry-run

  Keep three days of one topic, regardless of its configuration:
    kafka-log-compaction expire --log-dir /backup/kafka --topic page-views \\
        --set cleanup.policy=delete --set retention.ms=3d

  Write a copy without expired segments, here in an object store:
    kafka-log-compaction expire --log-dir s3://backups/kafka --output-dir s3://backups/kafka-expired \\
        --config server.properties

  Repeat a scheduled run, with the same result:
    kafka-log-compaction expire --log-dir /backup/kafka --as-of 2026-11-22T02:00Z
"""


OPTIONS = CommandOptions("expire", ExpireOptions, *REPORTED, description=_DESCRIPTION, epilog=_EPILOG)


@OPTIONS.function
def expire(log_dirs: Texts, **options: Unpack[ExpireOptions]) -> RunReport:
    """Deletes segments from logs at rest as Kafka's delete policy would, in place or into a copy.

    >>> report = compaction.expire(log_dir, settings={"cleanup.policy": "delete", "retention.ms": "3d"}, dry_run=True)
    >>> sum(log.expired_segments for log in report.logs)
    0

    The parameters are the options of ``kafka-log-compaction expire``, see ``compact``.

    :raises UsageError: an argument is invalid; nothing was changed
    :raises CompactionError: the run as a whole failed; a log that fails is in the report
    """
    return run_on_engine(Inputs.of(OPTIONS, options, log_dirs=log_dirs), _run)


def _run(engine: EngineChoice, inputs: Inputs) -> RunReport:
    request = with_output(inputs, read_request(inputs))
    return logs_done(engine, inputs, done_before(inputs, request) or execute(engine, request))


def execute(engine: EngineChoice, request: CompactionRequest) -> RunReport:
    """Applies the delete policy. Only very many segments are read by tasks, so the task runner is imported on demand."""
    if (report := report_without_logs(request)) is not None:
        return report
    from compaction.run.expire import delete_old_segments

    return delete_old_segments(engine.passes(), request)


main = main_of(OPTIONS)
