"""``compact``: cleans logs as the log cleaner of their Kafka version does.

Estimates from a sample of keys which share of its records cleaning retains of a log that was never cleaned.

The sample is blocks of ``_BLOCK_BYTES``, evenly spread over the segments, ``_BLOCKS`` of a log and ``_MOST_BYTES`` of all. The
records are taken to be drawn evenly from K keys. Of n of them, K (1 - exp(-n / K)) are expected to have distinct keys, which
gives K, and with it how many of all records have. Some keys are more frequent than others: then more records are superseded
within the sample than K keys would, so that K is too small, and with it the retained share.

n²/2K pairs of equal keys are expected. If there is none, K is at least n²/6 with a probability of 95 %: a small sample does not
prove that a large log has few superseded records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from compaction.config.request import BENEFIT, CompactionRequest
from compaction.engine import Engine
from compaction.errors import CompactionError
from compaction.files.filesystem import DiskFileSystem, FileSystem, join
from compaction.files.segment_file import Block, SegmentReader
from compaction.kernels.keys import HashSecret
from compaction.log.read_log import cut_segment
from compaction.log.settings import Settings
from compaction.names import LOG, segment_file
from compaction.passes.decoder import Decoder
from compaction.passes.scan import Entries
from compaction.passes.tasks import MapContext
from compaction.report import LogReport, RunReport
from compaction.rules.log_to_clean import Verdict
from compaction.rules.log_view import LogView
from compaction.rules.plan import LogPlan, PolicyPlan, benefit, dirtiest_first, freed_bytes, plan_policy
from compaction.run.cleaner import Cleaner
from compaction.run.log import Log, cleaned_report, deferred_report, skipped_report
from compaction.run.offset_maps import OffsetMaps
from compaction.run.run import Command, Run
from compaction.run.sizing import Sizes
from compaction.run.waves import defer
from compaction.screen.amounts import counted
from compaction.screen.steps import step

_BLOCKS = 16
_BLOCK_BYTES = 256 << 10
#: of all logs of a run together
_MOST_BYTES = 1 << 30
#: without a pair of equal keys, there are at least n²/6 keys, as 3 expected pairs would be missed once in 20 times
_CERTAIN_PAIRS = 6


def clean_logs(
    start: Callable[[], Engine],
    request: CompactionRequest,
    files: DiskFileSystem | None = None,
    sizes: Sizes | None = None,
    on_wave: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """Compacts the logs of ``request``; see ``Run``."""
    return Run(_Compaction(request), start, request, files, sizes, on_wave).run()


@dataclass
class _Compaction(Command):
    request: CompactionRequest
    #: how the log directories are accessed, once they are locked
    files: DiskFileSystem | None = None
    counts_expired = True

    def begin(self, files: DiskFileSystem) -> None:
        self.files = files

    def plan(self, view: LogView, settings: Settings) -> PolicyPlan:
        active, rules = self.request.include_active, settings.kafka.rules
        return plan_policy(view, settings.topic, now_ms=self.request.as_of_ms, include_active=active, rules=rules)

    def order(self, logs: Sequence[Log]) -> list[Log]:
        by_path = {log.location.path: log for log in logs}
        if self.request.budget.min_freed_share is not None and self.files is not None:
            sample_keys(self.files, [log for log in logs if log.cleans])
        ordered = [by_path[plan.view.path] for plan in dirtiest_first(log.compaction for log in logs)]
        if self.request.order == BENEFIT:
            ordered.sort(key=lambda log: (not log.cleans, -benefit(log.plan)))
        defer([log for log in ordered if log.cleans], self.request.budget)
        return ordered

    def method(self, cleaner: Cleaner) -> OffsetMaps:
        return OffsetMaps(cleaner.runner, cleaner.sizes, self.request.as_of_ms, allow_keyless=self.request.allow_keyless)

    def report(self, log: Log) -> LogReport:
        if log.compaction.verdict is not Verdict.CLEAN:
            return skipped_report(log.plan)
        report = cleaned_report(log.plan, log) if log.deferred is None else deferred_report(log)
        return replace(report, estimated_freed_bytes=freed_bytes(log.plan))


def sample_keys(files: FileSystem, logs: Sequence[Log]) -> None:
    """Sets ``sampled_share`` in the plans of the logs to clean that have no clean section; not of one that cannot be read."""
    unknown = [log for log in logs if not log.compaction.clean_bytes and log.compaction.dirty_bytes]
    if not unknown:
        return
    step(f"sampling keys of {counted(len(unknown), 'log')}")
    blocks = max(1, min(_BLOCKS, _MOST_BYTES // (_BLOCK_BYTES * len(unknown))))
    secret = HashSecret.random()
    for log in unknown:
        try:
            share = _sampled_share(files, log.compaction, blocks, secret)
        except CompactionError:
            # what cannot be read fails the log when it is cleaned
            continue
        log.planned = replace(log.plan, compaction=replace(log.compaction, sampled_share=share))


def _sampled_share(files: FileSystem, plan: LogPlan, blocks: int, secret: HashSecret) -> float:
    segments = plan.segments[:: max(1, len(plan.segments) // blocks)][:blocks]
    of_segment = max(1, blocks // len(segments))
    hashes, sampled_bytes = [np.empty(0, np.uint64)], 0
    for segment in segments:
        path = join(plan.view.path, segment_file(segment.base_offset, LOG))
        cuts = cut_segment(files, plan.view.path, segment, max(_BLOCK_BYTES, segment.size_bytes // of_segment))
        for cut in cuts[:of_segment]:
            with SegmentReader(files, path, cut.start, cut.end, block_bytes=_BLOCK_BYTES) as reader:
                for block in islice(reader.blocks(check_crc=True), 1):
                    sampled_bytes += len(block.raw)
                    hashes += _hashes(block, secret)
    sampled = np.concatenate(hashes)
    records = len(sampled) * plan.dirty_bytes // max(1, sampled_bytes)
    return retained_share(len(sampled), len(np.unique(sampled)), records)


def _hashes(block: Block, secret: HashSecret) -> Iterator[NDArray[np.uint64]]:
    """Hashes of the keys of its records."""
    entries, decoder = Entries(MapContext(0, 1), secret), Decoder()
    for batches in decoder.as_v2(block):
        for decoded in decoder.decode(batches, entries.begin(batches)):
            yield from (mapped[:, 0].copy() for mapped, _ in entries.of(decoded))


def retained_share(sampled: int, distinct: int, records: int) -> float:
    """The share of ``records`` with distinct keys, if ``distinct`` of ``sampled`` have them."""
    if distinct >= sampled:
        return min(1.0, sampled * sampled / (_CERTAIN_PAIRS * max(1, records)))
    low, high = math.log(max(1, distinct)), math.log(max(1, distinct)) + 60
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _distinct(middle, sampled) < distinct else (low, middle)
    return min(1.0, _distinct(low, max(records, sampled)) / max(records, sampled))


def _distinct(log_keys: float, records: int) -> float:
    """The expected number of distinct keys among records, of exp(``log_keys``) keys."""
    keys = math.exp(log_keys)
    return -keys * math.expm1(-records / keys)
