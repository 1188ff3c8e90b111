"""One log on its way through a run. Each step of a run sets some of its fields:

| step | sets |
| --- | --- |
| prepare | ``location``, ``plan`` |
| build the offset map | ``slices``, ``aborted``, ``totals`` |
| resolve transactions | ``txn_index``, ``invalid``, ``context`` |
| clean into groups | ``parts``, ``stats``, ``keys``, ``groups``, ``unchanged`` |

A step that fails sets ``error``; later steps skip the log, and none of its outputs is swapped in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.log_to_clean import Verdict
from compaction.cleaning.log_view import AbortedTxn, LogView, Segment
from compaction.cleaning.plan import LogPlan, PolicyPlan
from compaction.cleaning.transactions import KEYLESS_ROW, TXN_ROW, AbortedRanges
from compaction.names import LogLocation
from compaction.output.swap import SwapGroup
from compaction.passes.tasks import CleanContext, CleanStats, OutputPart, Slice, SliceSummary


@dataclass(frozen=True)
class ScanTotals:
    """Totals of pass 1 over the slices of a log: counts of records, ``TXN_ROW`` and ``KEYLESS_ROW`` arrays."""

    messages: int = 0
    keyless: int = 0
    txn_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TXN_ROW))
    keyless_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, KEYLESS_ROW))

    @classmethod
    def of(cls, summaries: Iterable[SliceSummary]) -> ScanTotals:
        """The sum of the summaries of a log's slices, which are in the order of offsets."""
        own = list(summaries)
        return cls(
            sum(summary.messages for summary in own),
            sum(summary.keyless for summary in own),
            np.concatenate([np.empty(0, TXN_ROW), *(summary.txn_rows for summary in own)]),
            np.concatenate([np.empty(0, KEYLESS_ROW), *(summary.keyless_rows for summary in own)]),
        )


@dataclass(eq=False)
class LogCleaning:
    """See the module's table.

    :ivar number: identifies the log in slices, tasks and shuffles of the run
    :ivar directory: where tasks write the outputs
    :ivar txn_index: aborted transactions of each group's output
    :ivar invalid: number of records dropped because they have no key
    :ivar expired_records: number of records of the segments that the delete policy deletes; ``None`` if not counted
    :ivar seconds: time of the tasks that read and wrote the log, summed over the tasks
    :ivar groups: outputs to be swapped in; in a dry run they have no files
    :ivar swapped: outputs that are in place, of a log that is cleaned in portions
    :ivar is_last: ``groups`` are its last portion
    :ivar unchanged: base offsets of the segments that stay, since their output would be the same
    :ivar deferred: why it is left to the next run
    :ivar error: one line
    """

    location: LogLocation
    plan: PolicyPlan
    directory: str
    number: int = 0
    slices: list[Slice] = field(default_factory=list)
    aborted: AbortedRanges | None = None
    totals: ScanTotals = field(default_factory=ScanTotals)
    txn_index: tuple[tuple[AbortedTxn, ...], ...] = ()
    context: CleanContext | None = None
    parts: list[OutputPart] = field(default_factory=list)
    stats: CleanStats = CleanStats()
    keys: int = 0
    invalid: int = 0
    expired_records: int | None = None
    seconds: float = 0.0
    groups: tuple[SwapGroup, ...] = ()
    swapped: tuple[SwapGroup, ...] = ()
    is_last: bool = True
    unchanged: frozenset[int] = frozenset()
    deferred: str | None = None
    error: str | None = None

    @property
    def cleans(self) -> bool:
        """Whether the passes clean it."""
        return self.compaction.verdict is Verdict.CLEAN and self.deferred is None

    @property
    def sources(self) -> list[Segment]:
        """The segments to be cleaned that are not replaced yet."""
        replaced = {base for group in self.swapped for base in group.source_base_offsets}
        return [segment for segment in self.compaction.segments if segment.base_offset not in replaced]

    def release(self) -> None:
        """Releases what only the passes need."""
        self.slices, self.parts, self.txn_index = [], [], ()
        self.aborted, self.totals, self.context = None, ScanTotals(), None

    @property
    def view(self) -> LogView:
        """The log before the run."""
        return self.plan.compaction.view if self.plan.deletion is None else self.plan.deletion.view

    @property
    def compaction(self) -> LogPlan:
        return self.plan.compaction
