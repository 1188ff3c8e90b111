"""A log with one shard whose slices are all scanned by one task needs no shuffled map if its entries fit the task's memory."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from compaction.engine import Job, Reading
from compaction.kernels.tables import ENTRY_BYTES
from compaction.passes.build_map import flag_single_task_logs
from compaction.passes.tasks import MapContext, Resolved, Slice
from compaction.run.compact import clean_logs
from compaction.run.run import Environment
from compaction.run.sizing import Sizes
from tests.local_job import request_for
from tests.local_passes import LocalPasses, Shuffled
from tests.memory import scratch
from tests.passes.random_cases import FLAVOURS, NOW_MS, random_case
from tests.passes.test_metamorphic import WHOLE, cleaned, files, lay_out

TINY_MAP = 4 * ENTRY_BYTES


class Watching(LocalPasses):
    """Records what pass 1 emitted; a task's map may be made small."""

    def __init__(self, map_bytes: int | None = None) -> None:
        super().__init__()
        self.emitted: Mapping[Any, Sequence[Any]] = {}
        self._map_bytes = map_bytes

    def shuffle(self, job: Job, source: Any, emit: Any, *to: Any, **options: Any) -> Shuffled:
        if job.name != "pass 1":
            return super().shuffle(job, source, emit, *to, **options)
        settings = emit.keywords["settings"]
        small = replace(settings, map_bytes=self._map_bytes or settings.map_bytes)
        scanned = super().shuffle(job, source, partial(emit, settings=small), *to, **options)
        self.emitted = dict(ChainMap(*scanned.values))
        return scanned


def part(log: int) -> Slice:
    return Slice(log, 0, "x", 0, 1, 0, 1, 0)


def test_logs_with_one_shard_and_all_slices_in_one_task_are_single_task() -> None:
    logs = {0: MapContext(0, 1), 1: MapContext(0, 1), 2: MapContext(0, 2), 3: MapContext(0, 1)}
    found = flag_single_task_logs(logs, [[part(0), part(0), part(1)], [part(1), part(2), part(3)]])
    assert {log: work.single_task for log, work in found.items()} == {0: True, 1: False, 2: False, 3: True}


@pytest.mark.parametrize("flavour", sorted(FLAVOURS))
@pytest.mark.parametrize("map_bytes", [None, TINY_MAP], ids=["all fit", "spilled"])
def test_a_full_map_is_spilled_and_the_output_is_the_same(flavour: str, map_bytes: int | None) -> None:
    case = random_case(flavour, 6)
    watching = Watching(map_bytes)
    with scratch() as root:
        lay_out(root, case)
        request = request_for(root, NOW_MS, {case.name: case.topic_config})
        clean_logs(lambda: watching, request, Environment(sizes=WHOLE))
        assert files(root, case) == cleaned(case, Sizes(300, 300, 1 << 20))
    shards = ([each for each in values if not isinstance(each, Reading)] for values in watching.emitted.values())
    emitted = [parts for parts in shards if parts]
    assert all(len(parts) == 1 or not any(isinstance(each, Resolved) for each in parts) for parts in emitted)
    complete = [isinstance(parts[0], Resolved) for parts in emitted]
    assert complete
    assert all(complete) if map_bytes is None else not all(complete)
