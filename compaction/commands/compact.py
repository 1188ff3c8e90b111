"""``compact``: cleans the logs of Kafka log directories at rest as the broker's log cleaner would.

``compaction.run.compact`` has the steps of a run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from compaction.commands.runs import done_before, logs_done, main_of, report_without_logs, run_on_engine
from compaction.config.request import Budget, CompactionRequest
from compaction.engine_choice import ENCRYPTED, EngineChoice, surroundings
from compaction.errors import CompactionError
from compaction.names import TopicPartition
from compaction.options.inputs import Inputs, read_request, with_output
from compaction.options.option import CommandOptions
from compaction.options.table import REPORTED, CompactOptions
from compaction.options.values import Texts, read_duration, read_share, read_size
from compaction.report import LogReport, LogStatus, RunReport
from compaction.screen.amounts import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from compaction.certifier.certificate import VerifyReport

_DESCRIPTION = """\
Compact Kafka logs at rest: keep the latest record of each key, exactly as the log cleaner of
their Kafka version does (2.8 to 4.4). The result is a log that a broker loads and consumers read.

A log is cleaned if its cleanup.policy includes compact, and its dirty ratio is over
min.cleanable.dirty.ratio or max.compaction.lag.ms has passed. A log of unknown cleanup.policy is
skipped, and counted separately. The last segment of a log is active and is not cleaned. If
cleanup.policy also includes delete, expired segments are deleted first. Segments are replaced in
place. After a crash at any point, a broker or a second run finds every retained record.
"""

_EPILOG = """\
examples:
  What would be cleaned in a stopped broker's directory, and why?
    kafka-log-compaction compact --log-dir /var/lib/kafka --config server.properties --dry-run

  Clean the consumer offsets topic, regardless of its dirty ratio:
    kafka-log-compaction compact --log-dir /var/lib/kafka --topic __consumer_offsets \\
        --set min.cleanable.dirty.ratio=0

  Write a compacted copy of an export, including its last segments:
    kafka-log-compaction compact --log-dir /exports/orders --set cleanup.policy=compact \\
        --include-active --output-dir /exports/orders-compacted --report orders.json

  Repeat a scheduled run, with the same result:
    kafka-log-compaction compact --log-dir /backup/kafka --as-of 2026-11-22T02:00Z
"""


OPTIONS = CommandOptions("compact", CompactOptions, *REPORTED, description=_DESCRIPTION, epilog=_EPILOG)


@OPTIONS.function
def compact(log_dirs: Texts, **options: Unpack[CompactOptions]) -> RunReport:
    """Cleans logs at rest as the log cleaner of their Kafka version would, in place or into a copy.

    >>> report = compaction.compact(log_dir, settings={"cleanup.policy": "compact"}, dry_run=True)
    >>> report.status.value
    'done'

    The parameters are the options of ``kafka-log-compaction compact``; one value may stand for a list of one.

    :param settings: as ``--set``: topic-level or broker-level settings by name
    :param as_of: the current time for every rule: ISO 8601 with an offset from UTC, a ``datetime`` with one, or milliseconds
    :param max_duration: e.g. ``2h``, or milliseconds
    :param max_rewrite: e.g. ``500GiB``, or bytes
    :param engine: ``local``, ``spark`` or ``auto``
    :param cores: the largest number of worker processes on this machine
    :param spark: the caller's session, which is neither stopped nor configured
    :raises UsageError: an argument is invalid; nothing was changed
    :raises CompactionError: the run as a whole failed; a log that fails is in the report
    """
    settings = ENCRYPTED if options["verify"] else {}
    return run_on_engine(Inputs.of(OPTIONS, options, log_dirs=log_dirs), _run, settings)


def _run(engine: EngineChoice, inputs: Inputs) -> RunReport:
    budget = Budget(
        read_duration("--max-duration", inputs["max_duration"]),
        read_size("--max-rewrite", inputs["max_rewrite"]),
        read_share("--min-freed", inputs["min_freed"]),
    )
    request = replace(
        with_output(inputs, read_request(inputs)),
        include_active=inputs["include_active"],
        allow_keyless=inputs["allow_keyless"],
        release_early=inputs["release_early"],
        retain_replaced=inputs["verify"],
        order=inputs["order"],
        budget=budget,
    )
    verified: list[VerifyReport] = []
    report = done_before(inputs, request)
    if report is None:
        if inputs["verify"]:
            from compaction.certifier.find_pairs import require_sources

            require_sources(request)
            if request.output_dir is not None:
                request = replace(request, check_copy=partial(_check_copy, engine, request, verified))
        report = execute(engine, request)
    report = logs_done(engine, inputs, report)
    if inputs["verify"] and request.check_copy is None:
        verified = _verified(engine, request, report)
    return replace(report, verified=tuple(verified))


def execute(engine: EngineChoice, request: CompactionRequest) -> RunReport:
    """Runs the cleaner. It is imported only here, so that a run without logs, or with a usage error, is quick."""
    if (report := report_without_logs(request)) is not None:
        return report
    with engine.running() as start:
        from compaction.run.compact import clean_logs

        return clean_logs(start, request, on_wave=surroundings().on_wave)


def _verified(engine: EngineChoice, request: CompactionRequest, report: RunReport) -> list[VerifyReport]:
    """The certificates of the result; of all logs if an earlier run made the output, because it may not have verified it."""
    from compaction.certifier.find_pairs import requests
    from compaction.commands.verify import certified

    if report.done_before:
        logs = (LogReport(*log.topic_partition, log.log_dir, LogStatus.CLEANED, "") for log in request.logs)
        report = replace(report, logs=tuple(logs))
    return [certified(engine, verification) for verification in requests(request, report)]


def _check_copy(
    engine: EngineChoice,
    request: CompactionRequest,
    verified: list[VerifyReport],
    log_dir: str,
    copy: str,
    logs: frozenset[TopicPartition],
) -> None:
    """Adds the certificate of a copy to ``verified`` before it is published; an error if it does not hold."""
    from compaction.certifier.certificate import Status, error_line
    from compaction.certifier.find_pairs import of_logs
    from compaction.commands.verify import certified

    report = certified(engine, of_logs(request, log_dir, logs, copy))
    wrong = [error_line(log) for log in report.logs if log.status is not Status.HOLDS]
    wrong += [line for directory in report.directories for line in directory.lines()]
    if wrong:
        others = f", and {counted(len(wrong) - 1, 'more log')}" if wrong[1:] else ""
        message = f"--verify: the copy was not published: {wrong[0]}{others}"
        raise CompactionError(message, hint="check the disk and the memory, and run again")
    verified.append(report)


main = main_of(OPTIONS)
