"""From a request to certificates: finds the logs, their settings and their two sides."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.certifier.certificate import LogCertificate, VerifyReport
from compaction.certifier.certify import certify_pairs
from compaction.certifier.checks.log_pair import CleaningRules, LogPair
from compaction.certifier.checks.offset_ranges import RANGE_BYTES
from compaction.certifier.read_sides import pair_directories, pair_in_place
from compaction.certifier.task_runner import TaskRunner
from compaction.certifier.verify_request import VerifyRequest
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError
from compaction.fs.filesystem import FileSystem
from compaction.logdir.discover import LogLocation, Selector, discover
from compaction.logdir.settings.log_settings import Settings, read_settings
from compaction.stores.mixed import file_system


def certify(engine: TaskRunner, request: VerifyRequest, range_bytes: int = RANGE_BYTES) -> VerifyReport:
    """Certify the logs that a request asks for.

    :raises UsageError: a partition was asked for by name and is nowhere
    :raises ConfigError: the call's own settings contradict each other
    """
    return certify_pairs(engine, find_pairs(request), request.now_ms, range_bytes)


def find_pairs(request: VerifyRequest) -> list[LogPair | LogCertificate]:
    """Both sides of each log; a log of which something is wrong as its certificate."""
    fs = file_system((*request.before, *request.after))
    sources = _locations(fs, request, request.before or request.after)
    log_dirs = request.before or request.after
    asked = CompactionRequest(log_dirs, request.now_ms, resolver=request.resolver, metadata_dirs=request.metadata_dirs)
    rules = dict(zip(sources, read_settings(fs, sources, asked), strict=True))

    def rules_for(location: LogLocation) -> CleaningRules | CompactionError:
        found = rules[location]
        return _rules(request, found) if isinstance(found, Settings) else found

    if not request.before:
        return pair_in_place(fs, sources, rules_for)
    return pair_directories(fs, sources, _locations(fs, request, request.after, named=False), rules_for)


def _locations(
    fs: FileSystem, request: VerifyRequest, log_dirs: Sequence[str], *, named: bool = True
) -> tuple[LogLocation, ...]:
    """The chosen logs; ``named``: each partition that was asked for by name must be there."""
    found = discover(fs, log_dirs, request.selector if named else Selector())
    chosen = (each for each in found if request.selector.takes(each.topic_partition))
    return tuple(each for each in chosen if request.logs is None or each.topic_partition in request.logs)


def _rules(request: VerifyRequest, settings: Settings) -> CleaningRules:
    topic = settings.topic
    return CleaningRules(
        now_ms=request.now_ms,
        exact=request.exact,
        delete_retention_ms=topic.delete_retention_ms,
        deletes=topic.cleanup_delete,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
        include_active=request.include_active,
        several_rounds=request.several_rounds,
        strict=request.strict,
    )
