"""Logs cleaned by ``compaction.strategy`` timestamp and header have, round after round, the bytes of the plain cleaner's.

The plain cleaner keeps a dictionary of the record of each key with the highest rank (``tests.oracle.cleaner``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.verify_request import VerifyRequest
from compaction.run.sizing import Sizes
from tests.certifier.certify import certify
from tests.kafka.encode import Batch, Record
from tests.local_job import clean_locally, resolver_of
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.segments import write_segment
from tests.passes.random_cases import NOW_MS, RANKED_FLAVOURS, random_case
from tests.passes.rounds import assert_four_rounds_equal

WHOLE = Sizes(1 << 30, 1 << 30, 1 << 30)
#: many slices, tasks and shards
TINY = Sizes(500, 1_500, 7)


@pytest.mark.parametrize("strategy", ["timestamp", "v"])
@pytest.mark.parametrize(("sizes", "seeds"), [(WHOLE, range(5)), (TINY, range(5, 9))])
def test_four_rounds_give_the_output_of_the_plain_cleaner(strategy: str, sizes: Sizes, seeds: range) -> None:
    cases = [random_case(flavour, seed, strategy) for seed in seeds for flavour in RANKED_FLAVOURS]
    with scratch() as root:
        assert_four_rounds_equal(root / "logs", cases, NOW_MS, sizes)


def test_a_tombstone_is_retained_while_the_record_that_it_supersedes_is_the_last_one(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact", "compaction.strategy": "timestamp", "min.cleanable.dirty.ratio": "0"}
    tombstone = Batch([Record(1, 10, b"k", None)], delete_horizon=NOW_MS - 1)
    batches = [Batch([Record(0, 1, b"a", b"v")]), tombstone, Batch([Record(2, 5, b"k", b"old")])]
    for sizes in (WHOLE, TINY):
        for more, left in (([], [0, 1, 2]), ([Batch([Record(3, 5, b"b", b"v")])], [0, 3])):
            write_partition(tmp_path / "t-0", [write_segment(0, [each.encode() for each in [*batches, *more]], 200, NOW_MS)])
            clean_locally(tmp_path, NOW_MS, {"t": config}, sizes, include_active=True)
            found = [batch for segment in read_partition(tmp_path / "t-0") for batch in segment.batches]
            assert [record.offset for batch in found for record in batch.records()] == left
            resolver = resolver_of({"t": config})
            request = VerifyRequest((), (str(tmp_path),), NOW_MS, exact=True, resolver=resolver, include_active=True)
            assert certify(request).status is Status.HOLDS
            (tmp_path / "cleaner-offset-checkpoint").unlink()
