"""Input logs of the stores, and the output of a run from disk to disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.golden import unpack_sample
from tests.object_store.fixtures import files, google, google_bucket
from tests.object_store.local_run import NOW_MS, OnDisk, run

__all__ = ["google", "google_bucket"]

SOME = ("__cluster_metadata-0", "orders-0", "payments-open-0", "inventory-0", "ledger-0", "never-written-0")


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the sample logs: compacted, transactional, both policies, none."""
    return unpack_sample(tmp_path_factory.mktemp("sample"), *SOME)


@pytest.fixture(scope="session")
def on_disk(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    """What a run from disk to disk writes and reports."""
    target = tmp_path_factory.mktemp("target") / "out"
    report = run("--log-dir", sample, "--output-dir", target)
    return files(target), report


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one segment of some 30 MB of keys that are all different, and one of a record."""
    from compaction.files.local import LocalFileSystem
    from tests.kafka.encode import Batch, Record
    from tests.log.logs import build, data_batch

    log = tmp_path_factory.mktemp("large") / "orders-0"
    log.mkdir()
    value = random.Random(1).randbytes(4096)
    batches = []
    for base in range(0, 7500, 100):
        records = [Record(offset, NOW_MS - 10**9 + offset, b"%d" % offset, value) for offset in range(base, base + 100)]
        batches.append(Batch(records).encode())
    disk = LocalFileSystem()
    build(0, batches).put(disk, str(log))
    build(7500, [data_batch(7500)]).put(disk, str(log))
    return log.parent
