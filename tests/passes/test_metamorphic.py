"""What may not matter does not: how work is cut and dealt, how much memory there is, whether a run was done before."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.files.segment_file import SegmentReader
from compaction.passes import clean_into, decoder, scan
from compaction.report import LogStatus
from compaction.run import cleaner, sizing
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.conftest import ROOT
from tests.kafka.jars import spark_home
from tests.local_job import KAFKA, clean_locally, request_for, topics_file, write_offsets
from tests.local_passes import LocalPasses, Shuffled
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.records import NaiveRecord
from tests.oracle.segments import NaiveSegment
from tests.passes.random_cases import FLAVOURS, NOW_MS, random_case
from tests.passes.rounds import Case

T = TypeVar("T")

QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
#: flavour and seed of a case
#: rounds over one range after which nothing changes any more
MOST_ROUNDS = 6
CASES = st.tuples(st.sampled_from(sorted(FLAVOURS)), st.integers(0, 30))
SIZES = st.builds(Sizes, st.integers(200, 20_000), st.integers(200, 20_000), st.integers(1, 300))
WHOLE = Sizes(1 << 30, 1 << 30, 1 << 30)


def lay_out(log_dir: Path, case: Case) -> None:
    write_partition(log_dir / f"{case.name}-0", case.segments)
    active = (entry._replace(last_timestamp_ms=NOW_MS) for entry in case.producers)
    write_producers(log_dir / f"{case.name}-0", case.segments[-1].next_offset, active)
    write_offsets(log_dir, cleaner_offsets={case.name: case.checkpoint})


def files(log_dir: Path, case: Case) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of all files that are not on their way out, those of the log directory included."""
    found = [*(log_dir / f"{case.name}-0").iterdir(), log_dir / "cleaner-offset-checkpoint"]
    kept = [file for file in found if file.suffix != ".deleted"]
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns if file.suffix == ".log" else 0) for file in kept}


def cleaned(case: Case, sizes: Sizes, now_ms: int = NOW_MS) -> dict[str, tuple[bytes, int]]:
    """What one run makes of the case."""
    with scratch() as root:
        lay_out(root, case)
        clean_locally(root, now_ms, {case.name: case.topic_config}, sizes)
        return files(root, case)


@QUICK
@given(CASES, SIZES)
def test_slices_tasks_and_shards_of_any_size_give_the_same_bytes(chosen: tuple[str, int], sizes: Sizes) -> None:
    case = random_case(*chosen)
    assert cleaned(case, sizes) == cleaned(case, WHOLE)


class AnyOrder(LocalPasses):
    """Tasks as a cluster may run them: they end, and their values arrive, in any order."""

    def __init__(self, cores: int, seed: int) -> None:
        super().__init__(cores)
        self._rng = random.Random(seed)

    def _shuffled(self, items: Iterable[T]) -> list[T]:
        return sorted(items, key=lambda _: self._rng.random())

    def shuffle(self, *inputs: Any, **options: Any) -> Shuffled:
        found = super().shuffle(*inputs, **options)
        values = [{place: self._shuffled(part[place]) for place in self._shuffled(part)} for part in found.values]
        return Shuffled(self._shuffled(found.results), values)


@QUICK
@given(CASES, st.integers(1, 200), st.integers(0, 1 << 30))
def test_any_number_of_cores_and_any_order_of_tasks_gives_the_same_bytes(
    chosen: tuple[str, int], cores: int, seed: int
) -> None:
    """Sizes follow from the number of cores; slices may be small enough here for a small log to be cut."""
    case = random_case(*chosen)
    with pytest.MonkeyPatch.context() as patch, scratch() as root:
        patch.setattr(sizing, "_MIN_SLICE_BYTES", 300)
        lay_out(root, case)
        request = request_for(root, NOW_MS, {case.name: case.topic_config})
        clean_logs(lambda: AnyOrder(cores, seed), request)
        assert files(root, case) == cleaned(case, WHOLE)


@pytest.mark.slow
@pytest.mark.spark
def test_another_number_of_sparks_cores_gives_the_same_bytes(tmp_path: Path) -> None:
    """The other tests use two."""
    cases = [random_case(flavour, 3) for flavour in sorted(FLAVOURS)[::3]]
    expected = {case.name: cleaned(case, WHOLE) for case in cases}
    for case in cases:
        lay_out(tmp_path, case)
    write_offsets(tmp_path, cleaner_offsets={case.name: case.checkpoint for case in cases})
    topics = topics_file(tmp_path.with_suffix(".toml"), {case.name: case.topic_config for case in cases})
    command = [str(spark_home() / "bin/spark-submit"), "--master", "local[3]", str(ROOT / "jobs/compact.py"), "--allow-keyless"]
    command += ["--log-dir", str(tmp_path), "--as-of-ms", str(NOW_MS), "--config", str(topics), "--kafka-version", KAFKA]
    env = dict(os.environ, PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    for case in cases:
        found = files(tmp_path, case)
        # the checkpoint of all logs is one file
        assert found.pop("cleaner-offset-checkpoint")
        expected[case.name].pop("cleaner-offset-checkpoint")
        assert found == expected[case.name], done.stdout


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every buffer so small that nearly every batch is too large for it, and maps of a handful of keys."""
    monkeypatch.setattr(cleaner, "_TASK_MAP_BYTES", 8 * 24)
    monkeypatch.setattr(scan, "_ENTRIES", 1)
    monkeypatch.setattr(clean_into, "_OUT_BYTES", 70)
    monkeypatch.setattr(clean_into, "_KEPT_ROWS", 1)
    monkeypatch.setattr(decoder, "SCRATCH_BYTES", 64)
    defaults = SegmentReader.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "block_bytes", 200)
    yield


@pytest.mark.parametrize("flavour", sorted(FLAVOURS))
@pytest.mark.parametrize("seed", [40, 41])
def test_buffers_of_any_size_give_the_same_bytes(request: pytest.FixtureRequest, flavour: str, seed: int) -> None:
    case = random_case(flavour, seed)
    roomy = cleaned(case, WHOLE)
    request.getfixturevalue("cramped")
    assert cleaned(case, WHOLE) == roomy
    assert cleaned(case, Sizes(700, 900, 3)) == roomy


@QUICK
@given(CASES)
def test_a_second_run_finds_nothing_dirty(chosen: tuple[str, int]) -> None:
    case = random_case(*chosen)
    with scratch() as root:
        lay_out(root, case)
        clean_locally(root, NOW_MS, {case.name: case.topic_config})
        once = files(root, case)
        clean_locally(root, NOW_MS, {case.name: case.topic_config})
        assert files(root, case) == once


@QUICK
@given(st.sampled_from(["no-transactions", "gzip", "lz4", "zstd", "one-key"]), st.integers(0, 60))
def test_the_output_has_the_last_value_of_each_key(flavour: str, seed: int) -> None:
    case = random_case(flavour, seed)
    case.checkpoint = case.segments[0].base_offset
    end = case.end_offset()
    if any(batch.transactional or batch.control for segment in case.segments for batch in segment.batches):
        return
    last = {record.key: record for record in records(case.segments) if record.offset < end and record.key is not None}
    with scratch() as root:
        lay_out(root, case)
        (report,) = clean_locally(root, NOW_MS, {case.name: case.topic_config}).values()
        if report.status is not LogStatus.CLEANED:
            return
        found = [record for record in records(read_partition(root / f"{case.name}-0")) if record.offset < end]
    expected = sorted(last.values(), key=lambda record: record.offset)
    assert [(r.offset, r.key, r.value) for r in found] == [(r.offset, r.key, r.value) for r in expected]
    assert report.keys == len(last)


def records(segments: Sequence[NaiveSegment]) -> list[NaiveRecord]:
    return [record for segment in segments for batch in segment.batches for record in batch.records()]


@pytest.mark.parametrize("flavour", sorted(FLAVOURS))
def test_the_output_does_not_depend_on_the_log_directory(flavour: str) -> None:
    """The output depends on the log alone: not on its directory, nor on what an earlier run left behind there."""
    case = random_case(flavour, 50)
    expected = cleaned(case, WHOLE)
    with scratch() as root:
        place = root / "a" / "b"
        place.mkdir(parents=True)
        lay_out(place, case)
        sizing = place / f"{case.name}-0"
        for left in (".log.clean", ".index.cleaned", ".log.deleted"):
            (sizing / f"{0:020d}{left}").write_bytes(b"left by another")
        clean_locally(place, NOW_MS, {case.name: case.topic_config})
        assert files(place, case) == expected
        shutil.rmtree(place)
