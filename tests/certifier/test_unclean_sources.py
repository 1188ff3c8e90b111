"""Sources of an unclean shutdown: what a run repairs is not held against it, what it has lost is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compaction.certifier.certificate import Status
from compaction.formats import indexes
from tests.certifier.certify import certify_copy
from tests.local_job import write_offsets

GOLDEN = Path(__file__).parents[1] / "golden" / "unclean"
NOW_MS = 1_800_000_000_000
TOPICS = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
INDEX = f"{0:020d}.txnindex"


def expected(case: str, tmp_path: Path, end_offset: int) -> Path:
    """What Kafka makes of a case, with the cleaner checkpoint."""
    after = tmp_path / "after"
    shutil.copytree(GOLDEN / case / "expected-by-kafka", after)
    write_offsets(after, cleaner_offsets={"t": end_offset})
    return after


def status_of(before: Path, after: Path) -> tuple[Status, str]:
    found = certify_copy(before, after, NOW_MS, TOPICS).logs[0]
    return found.status, str(found)


def entry(*fields: int) -> Callable[[bytes], bytes]:
    return lambda _: indexes.write_txn_index(np.array([fields], indexes.TXN_ROW))


SOURCE_INDEXES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: data,
    "malformed": lambda _: bytes([1]) * 7,
    "of another producer": entry(3, 2, 3, 4),
    "with other offsets": entry(2, 1, 2, 3),
}


@pytest.mark.parametrize("change", SOURCE_INDEXES.values(), ids=SOURCE_INDEXES.keys())
def test_a_rebuilt_transaction_index_is_not_compared_with_a_wrong_one(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    before = tmp_path / "before"
    shutil.copytree(GOLDEN / "empty-txnindex" / "t-0", before / "t-0")
    index = before / "t-0" / INDEX
    index.write_bytes(change(index.read_bytes()))
    status, text = status_of(before, expected("empty-txnindex", tmp_path, 4))
    assert status is Status.HOLDS, text


def test_garbage_after_the_last_batch_of_the_source_is_no_record(tmp_path: Path) -> None:
    status, text = status_of(GOLDEN / "garbage-tail", expected("garbage-tail", tmp_path, 24))
    assert status is Status.HOLDS, text
