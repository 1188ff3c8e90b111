"""The compaction job without Spark, in this process; its input logs, and its output from disk to disk."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from compaction.cli.parser import Parser
from compaction.commands import compact as job
from compaction.files.calls import call
from compaction.report import RunReport
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses
from tests.object_store.fixtures import files

NOW_MS = 1798761600000
COMPACT = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0")
#: the files that a run from disk to disk writes, and its report
OnDisk = tuple[dict[str, bytes], RunReport]


def run(*options: object, sizes: Sizes | None = None, include_active: bool = True) -> RunReport:
    """The job with these options, as of a fixed time."""
    given = [*map(str, options), "--as-of-ms", str(NOW_MS), *(["--include-active"] if include_active else [])]
    arguments = Parser(job.OPTIONS).parse_args(given)
    execute = partial(clean_logs, LocalPasses, sizes=sizes)
    with call(), patch.object(job, "execute", lambda _, request: execute(request)):
        report: RunReport = job.OPTIONS.run(vars(arguments))
        return report


def figures(report: RunReport) -> list[tuple[object, ...]]:
    """What a report says of each log, but for times."""
    logs = sorted(report.logs, key=lambda log: log.name)
    return [(log.name, log.status, log.reason, log.bytes_before, log.bytes_after, log.records_after, log.keys) for log in logs]


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
