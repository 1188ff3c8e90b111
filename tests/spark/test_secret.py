"""The secret that keys are hashed with is drawn for each run and leaves no trace in files, log lines or reports."""

from __future__ import annotations

import json
import logging
import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pyspark import SparkContext

from compaction.engines.spark import SparkEngine
from compaction.kernels.keys import HashSecret
from compaction.policies.compare_policies import compare_with
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.local_job import request_for, write_offsets
from tests.local_passes import LocalPasses
from tests.oracle.disk import write_partition
from tests.oracle.logs import LogBuilder, Sent
from tests.policies.test_compare_policies import request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_700_000_000_000
TOPIC = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
#: cuts the log into many slices and shards, and has the dirty keys collected beforehand
TINY = Sizes(2_000, 6_000, 40)


def lay_out(log_dir: Path) -> None:
    """A log of which little is dirty."""
    log, rng = LogBuilder(), random.Random(1)
    for segment in range(12):
        for _ in range(5):
            log.batch([Sent(b"key-%d" % rng.randrange(300), rng.randbytes(20)) for _ in range(20)])
        if segment < 11:
            log.roll(NOW_MS)
    segments = log.build()
    write_partition(log_dir / "t-0", segments)
    write_offsets(log_dir, cleaner_offsets={"t": segments[-2].base_offset})


def forms(secret: HashSecret) -> list[bytes]:
    """How its halves may be written: as words in both orders, and as text."""
    halves = (secret.low, secret.high)
    words = [half.to_bytes(8, order) for half in halves for order in ("little", "big")]
    texts = [text.encode() for half in halves for text in (str(half), f"{half:x}", f"{half:X}")]
    return words + texts


def holding(places: Sequence[Path], secrets: Sequence[HashSecret]) -> list[Path]:
    """The files below some directories that hold one of the secrets."""
    wanted = [form for secret in secrets for form in forms(secret)]
    found = []
    for file in (file for place in places for file in sorted(place.rglob("*")) if file.is_file()):
        # other sessions delete theirs
        with suppress(FileNotFoundError):
            data = file.read_bytes()
            found += [file] if any(form in data for form in wanted) else []
    return found


def places_of(sc: SparkContext) -> list[Path]:
    """Where PySpark and Spark write while a session lives: broadcasts, parallelized data, shuffles, spills, cached blocks.
    Includes the blocks of other sessions."""
    own = Path(str(sc._temp_dir))
    return [own, *own.parent.parent.glob("blockmgr-*")]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[HashSecret]:
    """The secrets that were drawn."""
    found: list[HashSecret] = []
    draw = HashSecret.random

    def noted() -> HashSecret:
        found.append(draw())
        return found[-1]

    monkeypatch.setattr(HashSecret, "random", noted)
    return found


@pytest.fixture
def parallelized(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What was given to ``parallelize``, whose file is gone when it returns."""
    found: list[bytes] = []
    original = SparkContext.parallelize

    def noted(sc: SparkContext, data: Any, *rest: Any) -> Any:
        given = list(data)
        found.append(pickle.dumps(given))
        return original(sc, given, *rest)

    monkeypatch.setattr(SparkContext, "parallelize", noted)
    yield found


def compact(log_dir: Path, sc: SparkContext) -> str:
    """The report of a run, as it is written."""
    report = clean_logs(lambda: SparkEngine(sc), request_for(log_dir, NOW_MS, TOPIC), sizes=TINY)
    assert report.exit_code == 0
    return report.to_json()


def compare(log_dir: Path, sc: SparkContext) -> str:
    """All of a comparison."""
    # maps of one key: the logs are read once more, for a broker's rounds
    wanted = request(log_dir, "cleanup.policy=compact,min.cleanable.dirty.ratio=0,log.cleaner.dedupe.buffer.size=2097152")
    found = compare_with(lambda: SparkEngine(sc), wanted, TINY)
    return json.dumps(asdict(found), default=str)


def test_the_search_finds_a_secret_that_is_broadcast(spark: SparkSession) -> None:
    """Otherwise the test below shows nothing."""
    sc, planted = spark.sparkContext, HashSecret.random()
    broadcast = sc.broadcast(planted)
    try:
        assert len(places_of(sc)) > 1
        assert holding(places_of(sc), [planted])
    finally:
        broadcast.destroy()


@pytest.mark.parametrize("run", [compact, compare])
def test_no_file_log_line_or_report_holds_the_secret(
    run: Any,
    spark: SparkSession,
    drawn: list[HashSecret],
    parallelized: list[bytes],
    tmp_log_dir: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    lay_out(tmp_log_dir)
    report = run(tmp_log_dir, spark.sparkContext)
    assert drawn
    assert parallelized
    assert not holding([*places_of(spark.sparkContext), tmp_log_dir], drawn)
    told = "".join([report, caplog.text, *capfd.readouterr()]).encode()
    for form in (form for secret in drawn for form in forms(secret)):
        assert form not in told
        assert not any(form in data for data in parallelized)


def test_every_run_draws_a_secret_of_its_own_and_hashes_all_keys_with_it(
    drawn: list[HashSecret], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[HashSecret] = []
    state = HashSecret.state

    def noted(secret: HashSecret) -> NDArray[np.uint64]:
        used.append(secret)
        return state(secret)

    monkeypatch.setattr(HashSecret, "state", noted)
    for number in range(2):
        log_dir = tmp_path / str(number)
        lay_out(log_dir)
        clean_logs(LocalPasses, request_for(log_dir, NOW_MS, TOPIC), sizes=TINY)
        assert len(drawn) == number + 1
        assert set(used) == {drawn[-1]}
        used.clear()
    assert drawn[0] != drawn[1]
