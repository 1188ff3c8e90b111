"""A comparison's figures equal those of real runs; counts that runs do not report are checked by a plain reader."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.filesize import decimal

import compaction
from compaction.config.request import CompactionRequest, ComparisonRequest
from compaction.config.resolver import Resolver
from compaction.config.sources import Policy, read_sets
from compaction.engine import Job
from compaction.engines.spark import SparkEngine
from compaction.formats.producer_snapshot import write_snapshot
from compaction.passes.tasks import MapContext, Slice
from compaction.policies.compare_policies import compare_with, explain
from compaction.policies.comparison import ComparedLog, Comparison, LogTotals, Outcome, OutcomeStatus
from compaction.policies.result import OverTime, simulation_metrics
from compaction.policies.shared_passes import AGE_BOUNDS_MS, POSITIONS
from compaction.report import LogReport
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from compaction.run.sizing import Sizes
from compaction.screen.progress import Progress
from tests.crash.surroundings import as_nobody, open_up
from tests.files.test_lock import held_elsewhere
from tests.golden import unpack_sample
from tests.kafka.cleaner import clean_partition
from tests.kafka.encode import Batch, Record
from tests.kafka.gateway import Gateway
from tests.kafka.log import Opening
from tests.local_job import logs_in, write_offsets
from tests.local_passes import LocalPasses, Shuffled
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.records import NaiveBatch, NaiveRecord, decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
NOW_MS = START_MS + 40 * DAY_MS
#: sizes that cut these small logs into many slices and shards
SMALL = Sizes(600, 900, 8)

FLAVOURS = {
    "plain": Flavour(batches=60, keys=12),
    "few-keys": Flavour(batches=40, keys=3, producers=8),
    "message-sets": Flavour(magics=(0, 1, 2), codecs=(0, 1), transactions=False),
    "packed": Flavour(codecs=(0, 2, 3, 4), keys=30),
    "odd": Flavour(codecs=(0, 4), odd=0.2),
}
POLICIES = (
    "cleanup.policy=compact,min.cleanable.dirty.ratio=0",
    "cleanup.policy=compact,min.cleanable.dirty.ratio=0,delete.retention.ms=0",
    "cleanup.policy=compact,min.cleanable.dirty.ratio=0,min.compaction.lag.ms=3455995000",
    "cleanup.policy=compact,min.cleanable.dirty.ratio=0,internal.segment.bytes=3000",
    "cleanup.policy=compact,min.cleanable.dirty.ratio=0,producer.id.expiration.ms=1",
    "cleanup.policy=delete,retention.bytes=3000,retention.ms=-1",
    "cleanup.policy=compact+delete,min.cleanable.dirty.ratio=0,retention.bytes=4000,retention.ms=-1",
    "cleanup.policy=,retention.ms=1",
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of random logs, some of them cleaned up to a segment's base or into the middle of a segment."""
    log_dir = tmp_path_factory.mktemp("random") / "logs"
    checkpoints: dict[str, int] = {}
    for number, (name, flavour) in enumerate(FLAVOURS.items()):
        made = random_log(7 + number, flavour, START_MS)
        write_partition(log_dir / f"{name}-0", made.segments)
        write_producers(log_dir / f"{name}-0", made.segments[-1].next_offset, made.producers)
        bases = made.segment_bases()
        if number % 2:
            checkpoints[name] = bases[len(bases) // 3] + number
    write_offsets(log_dir, cleaner_offsets=checkpoints)
    return log_dir


def request(log_dir: Path, *policies: str, topics: Sequence[str] = (), **given: Any) -> ComparisonRequest:
    base = CompactionRequest(*logs_in(log_dir, topics), NOW_MS, dry_run=True, **{"allow_keyless": True, **given})
    return ComparisonRequest(base, tuple(Policy.read(text) for text in policies))


def compared_locally(log_dir: Path, *policies: str, sizes: Sizes | None = None, **given: Any) -> Comparison:
    return compare_with(LocalPasses, request(log_dir, *policies, **given), sizes)


@pytest.fixture(scope="module")
def comparison(logs: Path) -> Comparison:
    return compared_locally(logs, *POLICIES, sizes=SMALL)


def run_for_real(log_dir: Path, policy: str, scratch: Path, **given: Any) -> tuple[Path, dict[str, LogReport]]:
    """Copies the directory and carries the policy out there, with its settings as ``--set``; its reports by log."""
    copy = scratch / "copy"
    shutil.copytree(log_dir, copy)
    sets = tuple(replace(setting, source=replace(setting.source, origin=read_sets(["segment.ms=1"])[0].source.origin))
                 for setting in Policy.read(policy).settings)  # fmt: skip
    run = CompactionRequest(*logs_in(copy), NOW_MS, resolver=Resolver(sets), **{"allow_keyless": True, **given})
    compacts = any("compact" in str(setting.value) for setting in sets if setting.name == "cleanup.policy")
    report = clean_logs(LocalPasses, run) if compacts else delete_old_segments(LocalPasses, replace(run, allow_keyless=False))
    return copy, {log.name: log for log in report.logs}


def as_told(report: LogReport, log_dir: Path, copy: Path) -> dict[str, Any]:
    """A report without what two runs over two copies cannot share."""
    told = {**asdict(report), "seconds": 0, "task_seconds": 0, "log_dir": ""}
    if not report.compacted:
        # a run of the delete policy reads no records
        told["expired_records"] = None
    told["settings"] = {name: each["value"] for name, each in report.settings.items()}
    told["reason"] = report.reason.replace("--set", "--policy").replace(str(copy), str(log_dir))
    return told


def batches(path: Path) -> list[NaiveBatch]:
    return [batch for file in sorted(path.glob("*.log")) for batch in decode(file.read_bytes())]


def held(path: Path) -> dict[str, int]:
    """What a partition directory holds, by the plain reader."""
    found = batches(path)
    data = [record for batch in found if not batch.control for record in batch.records()]
    return {
        "bytes": sum(file.stat().st_size for file in path.glob("*.log")),
        "segments": len(list(path.glob("*.log"))),
        "records": sum(len(batch.records()) for batch in found),
        "tombstones": sum(record.value is None for record in data),
        "keyless_records": sum(record.key is None for record in data),
    }


def without_record_bytes(holdings: LogTotals) -> dict[str, int]:
    values = asdict(holdings)
    del values["record_bytes"]
    return values


def assert_as_real_runs(found: Comparison, log_dir: Path, policies: Sequence[str], scratch: Path) -> None:
    for number, policy in enumerate(policies):
        copy, real = run_for_real(log_dir, policy, scratch / str(number))
        for log in found.logs:
            assert as_told(log.outcomes[number].run, log_dir, copy) == as_told(real[log.name], log_dir, copy), policy


def by_name(found: Comparison) -> dict[str, ComparedLog]:
    return {log.name: log for log in found.logs}


@pytest.mark.parametrize("number", range(len(POLICIES)), ids=POLICIES)
def test_the_figures_are_those_of_a_real_run(logs: Path, comparison: Comparison, number: int, tmp_path: Path) -> None:
    copy, real = run_for_real(logs, POLICIES[number], tmp_path)
    assert set(real) == set(by_name(comparison))
    for name, log in by_name(comparison).items():
        outcome = log.outcomes[number]
        assert as_told(outcome.run, logs, copy) == as_told(real[name], logs, copy), name
        for file in (copy / name).glob("*.deleted"):
            file.unlink()
        assert without_record_bytes(outcome.after) == held(copy / name), name


def test_the_policies_differ_in_what_they_do(comparison: Comparison) -> None:
    freed = [totals.before.bytes - totals.after.bytes for totals in comparison.totals()]
    assert freed[0] > 0
    assert 0 < freed[2] < freed[0]
    assert freed[6] > freed[5] > 0
    assert freed[7] == 0


def test_before_is_the_content_of_the_directory(logs: Path, comparison: Comparison) -> None:
    for name, log in by_name(comparison).items():
        assert without_record_bytes(log.before) == held(logs / name), name


def test_keys_are_counted_by_how_often_they_occur(logs: Path, comparison: Comparison) -> None:
    for name, log in by_name(comparison).items():
        counts = Counter(
            record.key
            for batch in batches(logs / name)
            if not batch.control
            for record in batch.records()
            if record.key is not None
        )
        assert (log.keys.distinct, log.keys.most_repeated) == (len(counts), max(counts.values())), name
        for row in log.keys.repetition:
            inside = [count for count in counts.values() if row.at_least <= count <= row.at_most]
            assert (row.keys, row.records) == (len(inside), sum(inside)), name
        assert sum(row.keys for row in log.keys.repetition) == len(counts)


def age_of(record: NaiveRecord) -> int:
    if record.timestamp < 0:
        return len(AGE_BOUNDS_MS) + 1
    return sum(NOW_MS - record.timestamp >= bound for bound in AGE_BOUNDS_MS)


def place_of(record: NaiveRecord, first: int, end: int) -> int:
    return min(POSITIONS - 1, int((record.offset - first) / (end - first) * POSITIONS))


def test_removed_records_are_counted_by_age_and_place(logs: Path, comparison: Comparison, tmp_path: Path) -> None:
    for number in (0, 6):
        copy, _ = run_for_real(logs, POLICIES[number], tmp_path / str(number))
        for name, log in by_name(comparison).items():
            source = batches(logs / name)
            first, end = source[0].base_offset, source[-1].next_offset
            left = {record.offset for batch in batches(copy / name) for record in batch.records()}
            every = [record for batch in source for record in batch.records()]
            gone = [record for record in every if record.offset not in left]
            for records, spread in ((every, log.spread), (gone, log.outcomes[number].gone)):
                ages, places = Counter(map(age_of, records)), Counter(place_of(each, first, end) for each in records)
                assert spread.by_age == tuple(ages[age] for age in range(len(AGE_BOUNDS_MS) + 2)), name
                assert spread.by_place == tuple(places[place] for place in range(POSITIONS)), name


def test_task_sizes_do_not_change_the_result(logs: Path, comparison: Comparison) -> None:
    whole = compared_locally(logs, *POLICIES)
    assert whole.logs == comparison.logs


@pytest.mark.spark
def test_spark_computes_the_same_comparison(logs: Path, comparison: Comparison, spark: SparkSession) -> None:
    assert compare_with(lambda: SparkEngine(spark.sparkContext), request(logs, *POLICIES)).logs == comparison.logs


@pytest.mark.spark
def test_spark_simulates_the_same_through_time(tmp_path: Path, spark: SparkSession) -> None:
    log_dir, policies = unpack_sample(tmp_path, "orders"), [{"cleanup.policy": "compact"}]
    local = compaction.dry_run(log_dir, over_time=True, as_of=NOW_MS + 800 * DAY_MS, policies=policies, engine="local")
    found = compaction.dry_run(log_dir, over_time=True, as_of=NOW_MS + 800 * DAY_MS, policies=policies, spark=spark)
    assert isinstance(found, OverTime)
    assert found.logs == local.logs
    assert found.to_arrow().num_rows == 3
    assert "run_info" in simulation_metrics(found)


@pytest.mark.spark
def test_every_pass_shows_its_progress_and_every_job_has_a_description(tmp_path: Path, spark: SparkSession) -> None:
    log_dir, stream = tmp_path / "logs", io.StringIO()
    of_many_keys(log_dir / "many-0", range(LEAST_KEYS + 1))
    made = random_log(11, FLAVOURS["plain"], START_MS)
    write_partition(log_dir / "plain-0", made.segments)
    write_producers(log_dir / "plain-0", made.segments[-1].next_offset, made.producers)
    policies = (POLICIES[0], f"cleanup.policy=compact,log.cleaner.dedupe.buffer.size={LEAST_BUFFER}")
    earlier = len(descriptions(spark))
    with Progress(partial(print, file=stream)) as progress:
        compare_with(lambda: SparkEngine(spark.sparkContext, progress), request(log_dir, *policies))
    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["transactions", "pass 1", "pass 2", "rounds"]
    size = decimal(held(log_dir / "many-0")["bytes"])
    assert re.fullmatch(rf"rounds: {size} in \d+\.\d s, [\d.]+ .B/s", lines[-1])
    assert [re.sub(r"[2-9]\d*", "N", told) for told in descriptions(spark)[earlier:]] == [
        "read batch headers of N slices",
        "pass 1: scan N slices for N maps",
        "count how often keys occur",
        "pass N: measure N slices",
        "count a broker's rounds over 1 logs",
    ]


def descriptions(spark: SparkSession) -> list[str]:
    """What the jobs so far are called in Spark's UI."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number) for number in range(jobs.size())]
    return [job.description().get() for job in sorted(found, key=lambda job: job.jobId()) if job.description().isDefined()]


class CountingPasses(LocalPasses):
    """Keeps what it was given to read."""

    scanned: Sequence[Slice] = ()
    variants: Mapping[int, MapContext]

    def shuffle(self, job: Job, source: Any, *to: Any, **options: Any) -> Shuffled:
        if job.name == "pass 1":
            self.scanned = [*self.scanned, *(each for task in source.tasks for each in task)]
            contexts, _ = source.known
            self.variants = {number: context for number, context in contexts.items() if number >= 0}
        return super().shuffle(job, source, *to, **options)


def test_every_segment_is_read_once_whatever_the_number_of_policies(logs: Path) -> None:
    passes = CountingPasses()
    several = [*POLICIES[:4], "cleanup.policy=delete,retention.bytes=3000", "configured"]
    compare_with(lambda: passes, request(logs, *several), SMALL)
    places = [(each.path, each.start) for each in passes.scanned]
    assert len(places) == len(set(places))
    assert sum(each.size_bytes for each in passes.scanned) == sum(file.stat().st_size for file in logs.rglob("*.log"))


def test_policies_of_the_same_range_share_a_map(logs: Path) -> None:
    passes = CountingPasses()
    compare_with(lambda: passes, request(logs, POLICIES[0], POLICIES[1], POLICIES[3]), SMALL)
    assert len(passes.variants) == len(FLAVOURS)


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return unpack_sample(tmp_path)


def tree(path: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and directory with mode, size and time of last modification, and what is not there."""
    every = [path, *path.rglob("*")]
    return {str(each): (each.stat().st_mode, each.stat().st_size, each.stat().st_mtime_ns) for each in every}


def test_nothing_is_written(sample: Path) -> None:
    # leftovers that a real run would clear away, and an index that it would build
    (sample / "orders-0" / f"{0:020d}.log.deleted").write_bytes(b"x")
    (sample / "orders-1" / f"{0:020d}.log.clean.1").write_bytes(b"x")
    (sample / "orders-2" / f"{0:020d}.index").unlink()
    before = tree(sample)
    found = compared_locally(sample, "configured", "cleanup.policy=compact+delete,retention.bytes=9000")
    explain(request(sample, "configured"))
    assert tree(sample) == before
    assert all(log.error is None for log in found.logs)


def test_a_user_without_write_permission_can_compare(sample: Path) -> None:
    expected = compared_locally(sample, "configured", topics=("orders", "sessions", "payments"))
    for each in [sample, *sample.rglob("*")]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    open_up(sample)

    def attempt() -> bytes:
        refused = []
        for path in (sample / "x", sample / "orders-0" / "x", sample / "orders-0" / f"{0:020d}.log"):
            try:
                with path.open("ab"):
                    refused.append(False)
            except PermissionError:
                refused.append(True)
        found = compared_locally(sample, "configured", topics=("orders", "sessions", "payments"))
        return repr((all(refused), found.logs == expected.logs)).encode()

    assert (as_nobody(attempt) if os.geteuid() == 0 else attempt()) == b"(True, True)"


def test_a_directory_in_use_is_read_with_a_warning(sample: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = compared_locally(sample, "configured").logs
    with held_elsewhere(sample) as holder:
        assert compared_locally(sample, "configured").logs == expected
        explain(request(sample, "configured"))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all(re.match(rf"{sample}: process {holder} .* is at work here", line) for line in told)


def without_keys(log_dir: Path) -> Path:
    """A log of which every third record has no key."""
    path = log_dir / "keyless-0"
    path.mkdir(parents=True)
    for first in range(0, 90, 30):
        keys = [None if offset % 3 == 0 else b"k%d" % (offset % 7) for offset in range(first, first + 30)]
        records = [Record(first + i, START_MS, key, b"v") for i, key in enumerate(keys)]
        (path / f"{first:020d}.log").write_bytes(Batch(records).encode())
    return log_dir


def test_a_log_that_a_run_would_refuse_has_figures(tmp_path: Path) -> None:
    log_dir = without_keys(tmp_path / "logs")
    policy = "cleanup.policy=compact"
    refused = outcome_of(compared_locally(log_dir, policy, allow_keyless=False))
    allowed = outcome_of(compared_locally(log_dir, policy))
    assert (refused.status, allowed.status) == (OutcomeStatus.REFUSED, OutcomeStatus.CLEANED)
    assert "--allow-keyless" in refused.reason
    assert refused.after == allowed.after
    assert allowed.after.keyless_records < allowed.run.invalid_records
    copy, real = run_for_real(log_dir, policy, tmp_path, allow_keyless=False)
    assert as_told(refused.run, log_dir, copy) == as_told(real["keyless-0"], log_dir, copy)


def outcome_of(found: Comparison) -> Outcome:
    (log,) = found.logs
    (outcome,) = log.outcomes
    return outcome


#: the number of keys in the smallest map that a broker accepts: 1 MiB and a byte of 24-byte slots, nine tenths of them
LEAST_BUFFER = 1_048_577
LEAST_KEYS = int(LEAST_BUFFER // 24 * 0.9)


def of_many_keys(path: Path, keys: Sequence[int]) -> None:
    """A partition of records with these keys, 20,000 a segment, and an empty active segment."""
    path.mkdir(parents=True)
    for first in range(0, len(keys), 20_000):
        part = keys[first : first + 20_000]
        records = [Record(first + i, START_MS, b"%d" % key, b"") for i, key in enumerate(part)]
        data = b"".join(Batch(records[at : at + 500]).encode() for at in range(0, len(records), 500))
        (path / f"{first:020d}.log").write_bytes(data)
    (path / f"{len(keys):020d}.log").touch()


def test_a_brokers_rounds_are_counted(tmp_path: Path) -> None:
    logs = {
        "fits": [*range(LEAST_KEYS - 1)] * 2,
        "just-fits": range(LEAST_KEYS),
        "one-more": [*range(LEAST_KEYS), 0],
        "twice": range(2 * LEAST_KEYS + 1),
        "hot": [7] * 50_000,
    }
    for name, keys in logs.items():
        of_many_keys(tmp_path / "logs" / f"{name}-0", keys)
    policies = (f"cleanup.policy=compact,log.cleaner.dedupe.buffer.size={LEAST_BUFFER}", "cleanup.policy=compact", "configured")
    found = compared_locally(tmp_path / "logs", *policies)
    rounds = {log.topic: tuple(outcome.broker_rounds for outcome in log.outcomes) for log in found.logs}
    assert rounds == {"fits": (1, 1, 0), "just-fits": (1, 1, 0), "one-more": (2, 1, 0), "twice": (3, 1, 0), "hot": (1, 1, 0)}


@pytest.mark.kafka
def test_the_rounds_are_those_that_kafkas_cleaner_takes(gateway: Gateway, tmp_path: Path) -> None:
    keys = [(number * number) % 90_001 for number in range(130_000)]
    log_dir = tmp_path / "logs"
    of_many_keys(log_dir / "many-0", keys)
    policy = f"cleanup.policy=compact,log.cleaner.dedupe.buffer.size={LEAST_BUFFER}"
    expected = outcome_of(compared_locally(log_dir, policy)).broker_rounds
    opening, checkpoint, rounds = Opening(NOW_MS, {"cleanup.policy": "compact"}), 0, 0
    while checkpoint < len(keys):
        checkpoint = clean_partition(gateway, log_dir / "many-0", opening, checkpoint, LEAST_BUFFER).end_offset
        rounds += 1
    assert expected == rounds >= 3


def test_policies_that_change_what_is_read_are_exact_too(tmp_path: Path, logs: Path) -> None:
    log_dir = tmp_path / "logs"
    shutil.copytree(logs, log_dir)
    for index in log_dir.rglob("*.index"):
        index.unlink()
    policies = [POLICIES[0], f"{POLICIES[0]},index.interval.bytes=0,segment.index.bytes=80"]
    found = compared_locally(log_dir, *policies)
    assert_as_real_runs(found, log_dir, policies, tmp_path)
    segments = [sum(log.outcomes[number].after.segments for log in found.logs) for number in (0, 1)]
    assert segments[1] > segments[0]


def test_lost_transaction_indexes_of_expired_producers_are_rebuilt_for_every_policy(tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    shutil.copytree(Path(__file__).parents[1] / "golden" / "unclean" / "empty-txnindex" / "t-0", log_dir / "t-0")
    for offset in (4, 5):
        (log_dir / "t-0" / f"{offset:020d}.snapshot").write_bytes(write_snapshot([]))
    policies = [POLICIES[0], f"{POLICIES[0]},delete.retention.ms=0", f"{POLICIES[0]},min.compaction.lag.ms=1"]
    found = compared_locally(log_dir, *policies)
    assert_as_real_runs(found, log_dir, policies, tmp_path)
    assert [outcome.run.aborted_records for outcome in found.logs[0].outcomes] == [1, 1, 1]
