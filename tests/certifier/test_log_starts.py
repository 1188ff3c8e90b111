"""A log that starts within a segment: of its transactions, those that end below the log start are left to the cleaner."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from compaction.certifier.certificate import Status, Violation
from compaction.formats import indexes
from tests.certifier.certify import certify_copy
from tests.certifier.story import CONFIG, INTERVAL_BYTES, NOW_MS, TOPIC, T, sent
from tests.local_job import clean_locally, write_offsets
from tests.oracle.disk import write_partition
from tests.oracle.logs import ABORT, Batching, LogBuilder

INDEX = f"{0:020d}.txnindex"
DIFFERS = Violation(6, ".txnindex entry differs from that of the source")


@pytest.mark.parametrize(("first_offset", "violations"), [(4, ()), (3, (DIFFERS,))])
def test_transactions_are_compared_from_the_log_start_on(
    tmp_path: Path, first_offset: int, violations: tuple[Violation, ...]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    log, aborted = LogBuilder(INTERVAL_BYTES), Batching(producer=8, transactional=True)
    for key in ("below", "above"):
        log.batch([sent(key), sent(f"{key}-2")], aborted)
        log.marker(8, ABORT, timestamp=T)
        log.batch([sent(f"{key}-3")])
    log.roll(T)
    log.batch([sent("active")])
    write_partition(before / f"{TOPIC}-0", log.build(NOW_MS))
    write_offsets(before, log_starts={TOPIC: 3})
    shutil.copytree(before, after)
    clean_locally(after, NOW_MS, {TOPIC: CONFIG})
    index = after / f"{TOPIC}-0" / INDEX
    (entry,) = indexes.read_txn_index(index.read_bytes()).tolist()
    assert entry[:3] == (8, 4, 6)
    index.write_bytes(indexes.write_txn_index(np.array([(8, first_offset, *entry[2:])], indexes.TXN_ROW)))
    (found,) = certify_copy(before, after, NOW_MS, {TOPIC: CONFIG}).logs
    assert found.violations == violations
    assert found.status is (Status.VIOLATED if violations else Status.HOLDS)
