"""The validated options of a job's call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compaction.config.resolver import Resolver
from compaction.config.sources import Policy
from compaction.names import LogLocation, TopicPartition

#: orders of logs
DIRTY, BENEFIT = "dirty", "benefit"


#: checks a copy before it is published: called with a log directory, that of its logs in the copy, and these logs
CheckCopy = Callable[[str, str, frozenset[TopicPartition]], None]


@dataclass(frozen=True)
class Budget:
    """The limits of a run in place; logs beyond them are deferred (``compaction.run.waves``). ``None``: no limit."""

    max_duration_ms: int | None = None
    max_rewrite_bytes: int | None = None
    min_freed_share: float | None = None


@dataclass(frozen=True)
class CompactionRequest:
    """One run of the log cleaner.

    ``log_dirs`` are absolute and do not overlap; ``logs`` are the selected logs in them, found before the run takes any lock
    (``compaction.log.discover``). ``as_of_ms`` is "now" for every rule. ``resolver`` has all sources
    of configuration except the metadata logs (``Resolver.with_metadata``). ``include_active``: no broker will append to these
    directories. ``allow_keyless``: records without a key may be dropped. ``metadata_dirs`` are absolute: log directories or
    metadata logs that apply to log directories of the same cluster (``compaction.log.metadata_logs``).
    ``replace``: ``output_dir`` may be a finished output, which the new one replaces. ``call`` is the request of the run,
    as an output records it (``compaction.output.finished``). ``only_known_files``: a copy has none that no broker loads.
    ``kafka_version`` is the version whose rules apply; ``None`` for that of each log's cluster
    (``compaction.log.settings``). ``release_early``: replaced segments are removed without regard to
    ``file.delete.delay.ms``. ``retain_replaced``: they are not removed in the run, which compares the result with them.
    ``since``: a finished output that the copy continues (``compaction.output.previous_copy``). ``check_copy`` raises an error
    if a copy must not be published.
    ``order``: the dirtiest logs first, or those with the largest benefit (``compaction.rules.plan``).
    """

    log_dirs: tuple[str, ...]
    logs: tuple[LogLocation, ...]
    as_of_ms: int
    resolver: Resolver = field(default_factory=Resolver)
    metadata_dirs: tuple[str, ...] = ()
    dry_run: bool = False
    output_dir: str | None = None
    include_active: bool = False
    allow_keyless: bool = False
    replace: bool = False
    only_known_files: bool = False
    call: Mapping[str, object] | None = None
    kafka_version: str | None = None
    release_early: bool = False
    retain_replaced: bool = False
    since: str | None = None
    check_copy: CheckCopy | None = None
    order: str = DIRTY
    budget: Budget = Budget()


@dataclass(frozen=True)
class Span:
    """The time that a simulation shows, ms since the epoch; ``None``: from the first record, up to the present.

    ``period_ms``: the time between two samples; ``None``: a day, or less if there are few days. ``ahead_ms``: how long it goes
    on after the present.
    """

    first_ms: int | None = None
    last_ms: int | None = None
    period_ms: int | None = None
    ahead_ms: int = 0


@dataclass(frozen=True)
class ComparisonRequest:
    """A comparison of policies over the logs of ``base``, or with ``over_time`` a simulation; nothing is written."""

    base: CompactionRequest
    policies: tuple[Policy, ...]
    over_time: Span | None = None
