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

    :param unreplaced: a log that is compared with itself counts, too, as one of which nothing had to be replaced
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
    found = zip(sources, read_settings(fs, sources, run), strict=True)
    rules = {each: _rules(request, settings) if isinstance(settings, Settings) else settings for each, settings in found}
    if not request.before:
        found_in_place = pair_in_place(fs, rules)
        return found_in_place if unreplaced else compared(found_in_place, request.after)
    twice = set() if unreplaced else set(request.before) & set(request.after)
    if twice:
        hint = "give a copy of the state before, or --in-place for the .deleted files of the last run"
        raise UsageError("nothing to compare: both sides are this directory", path=min(twice), hint=hint)
    # a partition that is missing here is a violation, not a wrong call
    return pair_directories(fs, rules, _locations(fs, request, request.after, Selector()))


def _locations(fs: FileSystem, request: VerifyRequest, log_dirs: Sequence[str], selector: Selector) -> tuple[LogLocation, ...]:
    """The requested logs; the partitions that ``selector`` names must exist."""
    found = discover(fs, log_dirs, selector)
    selected = (each for each in found if request.selector.matches(each.topic_partition))
    return tuple(each for each in selected if request.logs is None or each.topic_partition in request.logs)


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
        strategy=topic.compaction_strategy,
        header=topic.compaction_strategy_header.encode(),
        kafka_version=str(settings.kafka),
        producer_expiration_ms=settings.broker.producer_id_expiration_ms,
    )
