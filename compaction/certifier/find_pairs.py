"""Finds the logs that a verification requests, with their settings and their two sides."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.certifier.certificate import LogCertificate
from compaction.certifier.checks.log_pair import CleaningRules, LogPair
from compaction.certifier.read_sides import compared, pair_directories, pair_in_place
from compaction.certifier.verify_request import VerifyRequest
from compaction.config.request import CompactionRequest
from compaction.errors import UsageError
from compaction.logdir.discover import Selector, discover
from compaction.logdir.settings.log_settings import Settings, read_settings
from compaction.names import LogLocation
from compaction.storage.filesystem import FileSystem
from compaction.storage.mixed import file_system


def find_pairs(request: VerifyRequest, *, unreplaced: bool = False) -> list[LogPair | LogCertificate]:
    """Both sides of each log, or its certificate if they cannot be compared.

    :param unreplaced: include logs that are compared with themselves, because nothing had to be replaced
    :raises UsageError: a partition that the request names does not exist, or there is nothing to compare
    :raises ConfigError: the settings of the call contradict each other
    """
    fs = file_system((*request.before, *request.after))
    log_dirs = request.before or request.after
    sources = _locations(fs, request, log_dirs, request.selector)
    run = CompactionRequest(
        log_dirs,
        sources,
        request.now_ms,
        resolver=request.resolver,
        metadata_dirs=request.metadata_dirs,
        kafka_version=request.kafka_version,
    )
    settings_by_log = zip(sources, read_settings(fs, sources, run), strict=True)
    rules = {
        location: _rules(request, settings) if isinstance(settings, Settings) else settings
        for location, settings in settings_by_log
    }
    if not request.before:
        pairs_in_place = pair_in_place(fs, rules)
        return pairs_in_place if unreplaced else compared(pairs_in_place, request.after)
    shared_dirs = set() if unreplaced else set(request.before) & set(request.after)
    if shared_dirs:
        hint = "give a copy of the state before, or --in-place for the .deleted files of the last run"
        raise UsageError("nothing to compare: both sides are this directory", path=min(shared_dirs), hint=hint)
    # a partition that is missing on this side is a violation, not a wrong call
    return pair_directories(fs, rules, _locations(fs, request, request.after, Selector()))


def _locations(fs: FileSystem, request: VerifyRequest, log_dirs: Sequence[str], selector: Selector) -> tuple[LogLocation, ...]:
    """The requested logs; the partitions that ``selector`` names must exist."""
    locations = discover(fs, log_dirs, selector)
    selected = (location for location in locations if request.selector.matches(location.topic_partition))
    return tuple(location for location in selected if request.logs is None or location.topic_partition in request.logs)


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
        mtime_only=settings.kafka.rules.mtime_only,
        keeps_magic=settings.kafka.rules.keeps_magic,
        kafka_version=str(settings.kafka),
        producer_expiration_ms=settings.broker.producer_id_expiration_ms,
    )
