"""The requests of ``compact --verify``: each log of the run against its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compaction.certifier.find_pairs import VerifyRequest
from compaction.config.request import CompactionRequest
from compaction.errors import UsageError
from compaction.logdir.settings.log_settings import Settings, read_settings
from compaction.names import TopicPartition
from compaction.output.finished import layout
from compaction.report import LogReport, LogStatus
from compaction.run_report import RunReport
from compaction.storage.mixed import file_system


def require_sources(request: CompactionRequest) -> None:
    """:raises UsageError: the run of ``request`` would retain no sources to verify against"""
    if request.dry_run:
        raise UsageError("--verify: a dry run writes nothing to verify", hint="drop one of the two options")
    if request.output_dir is not None:
        return
    fs = file_system(request.log_dirs)
    for location, settings in zip(request.logs, read_settings(fs, request.logs, request), strict=True):
        if isinstance(settings, Settings) and settings.topic.file_delete_delay_ms == 0:
            source = settings.topic.source("file.delete.delay.ms")
            problem = f"{location.topic_partition} has file.delete.delay.ms=0 ({source}), which deletes the sources at once"
            raise UsageError(f"--verify: {problem}", hint="set another delay, or write to --output-dir")


def requests(request: CompactionRequest, report: RunReport) -> Iterator[VerifyRequest]:
    """One request per log directory: in a copy for every log that did not fail, in place for the changed logs."""
    targets = {} if request.output_dir is None else layout(request.output_dir, request.log_dirs)
    for log_dir in request.log_dirs:
        logs = frozenset(_logs_to_verify(report.logs, log_dir, in_place=not targets))
        if logs:
            yield of_logs(request, (log_dir,) if targets else (), targets.get(log_dir, log_dir), logs)


def of_logs(
    request: CompactionRequest, before: tuple[str, ...], after: str, logs: frozenset[TopicPartition]
) -> VerifyRequest:
    """The request for logs of one log directory of a run."""
    return VerifyRequest(
        before=before,
        after=(after,),
        now_ms=request.as_of_ms,
        exact=True,
        logs=logs,
        resolver=request.resolver,
        metadata_dirs=request.metadata_dirs,
        kafka_version=request.kafka_version,
        include_active=request.include_active,
        several_rounds=request.since is not None,
    )


def _logs_to_verify(logs: Iterable[LogReport], log_dir: str, *, in_place: bool) -> Iterator[TopicPartition]:
    for log in logs:
        changed = log.status is LogStatus.CLEANED or log.expired_segments
        if log.log_dir == log_dir and log.status is not LogStatus.FAILED and (changed or not in_place):
            yield TopicPartition(log.topic, log.partition)
