"""One log on its way through a run: the value that every step takes and adds to.

| step | adds |
| --- | --- |
| prepare | ``location``, ``plan`` |
| build the offset map | ``slices``, ``aborted``, ``totals`` |
| resolve transactions | ``txn_index``, ``invalid``, ``context`` |
| clean into groups | ``parts``, ``stats``, ``keys``, ``groups`` |

A step that fails for the log sets ``error``; later steps then leave the log alone, and nothing of it is swapped in.

Tested by ``tests/passes/test_rounds.py`` and ``tests/passes/test_alone.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.cleanup_policy import PolicyPlan
from compaction.cleaning.log_view import AbortedTxn
from compaction.cleaning.plan import LogPlan
from compaction.cleaning.txn_tables import KEYLESS_ROW, TXN_ROW, AbortedRanges
from compaction.logdir.discover import LogLocation
from compaction.output.swap import SwapGroup
from compaction.passes.tasks import CleanContext, CleanStats, OutputPart, Slice, SliceSummary


@dataclass(frozen=True)
class ScanTotals:
    """What pass 1 found in all slices of a log: counts of records, and its ``TXN_ROW`` and ``KEYLESS_ROW`` arrays."""

    messages: int = 0
    keyless: int = 0
    txn_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TXN_ROW))
    keyless_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, KEYLESS_ROW))

    @classmethod
    def of(cls, summaries: Iterable[SliceSummary]) -> ScanTotals:
        """The sum of the summaries of a log's slices, which are in the order of offsets."""
        found = list(summaries)
        return cls(
            sum(each.messages for each in found),
            sum(each.keyless for each in found),
            np.concatenate([np.empty(0, TXN_ROW), *(each.txn_rows for each in found)]),
            np.concatenate([np.empty(0, KEYLESS_ROW), *(each.keyless_rows for each in found)]),
        )


@dataclass(eq=False)
class LogCleaning:
    """See the module.

    ``number`` identifies the log in slices, tasks and shuffles of the run; ``directory`` is where tasks write its outputs;
    ``txn_index`` has the aborted transactions of each group's output; ``invalid`` counts records dropped because they have no
    key; ``groups`` are the outputs to be swapped in (named in a dry run too, without files); ``error`` is one line.
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
    groups: tuple[SwapGroup, ...] = ()
    error: str | None = None

    @property
    def compaction(self) -> LogPlan:
        """What the cleaner does to the log."""
        return self.plan.compaction
