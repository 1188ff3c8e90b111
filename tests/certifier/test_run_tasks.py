"""A verification says what it says in one process, wherever its tasks run, however the work is cut."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from compaction.certifier import certify as certifier
from compaction.certifier import records
from compaction.certifier.certificate import Remains, Status, VerifyReport
from compaction.certifier.certify import certify as certify_request
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.erasure_certificate import certify_erasure, search_files
from compaction.certifier.find_pairs import VerifyRequest
from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.engine import Engine
from compaction.engines.local import LocalEngine
from compaction.errors import UsageError
from compaction.formats.keys import KeyCriteria, KeyPattern
from compaction.run.compact import clean_logs
from compaction.screen.progress import Progress
from tests.certifier.certify import certify
from tests.erasure.test_erase_keys import erase, keys_of, write_odd
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.local_job import logs_in
from tests.local_passes import LocalPasses
from tests.passes.random_cases import FLAVOURS, random_case
from tests.passes.random_cases import NOW_MS as RANDOM_NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_767_225_600_000
ENGINES = ["processes", pytest.param("spark", marks=pytest.mark.spark)]


@contextmanager
def engine(name: str, request: pytest.FixtureRequest, told: io.StringIO | None = None) -> Iterator[Engine]:
    """What runs tasks elsewhere than in this process."""
    shown = Progress(partial(print, file=told or io.StringIO()))
    if name == "spark":
        from compaction.engines.spark import SparkEngine

        spark: SparkSession = request.getfixturevalue("spark")
        yield SparkEngine(spark.sparkContext, shown)
    else:
        with LocalEngine(2, shown, inline_bytes=0) as passes:
            yield passes


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> VerifyRequest:
    """The sample and a compacted copy of it."""
    root = tmp_path_factory.mktemp("certify")
    log_dir, copy = unpack_sample(root), root / "copy"
    resolver = Resolver(read_sets(["min.cleanable.dirty.ratio=0"]))
    run = CompactionRequest(*logs_in(log_dir), NOW_MS, resolver=resolver, output_dir=str(copy), allow_keyless=True)
    assert clean_logs(LocalPasses, run).exit_code == 0
    return VerifyRequest((str(log_dir),), (str(copy),), NOW_MS, exact=True, resolver=resolver)


def document(report: VerifyReport) -> str:
    return replace(report, seconds=0).to_json()


@pytest.mark.parametrize(
    ("name", "task_bytes", "turned"),
    [
        ("processes", 20_000, False),
        ("processes", 64 << 20, False),
        ("processes", 5_000, True),
        pytest.param("spark", 100_000, False, marks=pytest.mark.spark),
        pytest.param("spark", 100_000, True, marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_a_report_is_the_same_wherever_tasks_run(
    request: pytest.FixtureRequest, request_: VerifyRequest, name: str, task_bytes: int, turned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """``turned``: copy for source, so that everything that cleaning dropped is nowhere in the source."""
    asked = replace(request_, before=request_.after, after=request_.before) if turned else request_
    range_bytes = 2_000 if turned else task_bytes
    local = certify(asked, range_bytes)
    assert local.status is (Status.VIOLATED if turned else Status.HOLDS)
    assert turned or document(certify(asked)) == document(local)
    for module in (records, certifier):
        monkeypatch.setattr(module, "PARTITION_BYTES", task_bytes)
    monkeypatch.setattr(certifier, "RANGE_BYTES", 20 * task_bytes)
    monkeypatch.setattr("compaction.engine.SHOWN_BYTES", 0)
    told = io.StringIO()
    with engine(name, request, told) as runner:
        assert document(certify(asked, range_bytes, runner)) == document(local)
    # a busy machine is told of the same pass again
    assert [*dict.fromkeys(line.partition(":")[0] for line in told.getvalue().splitlines())] == ["segments", "records"]


def test_a_request_without_logs_to_compare_starts_nothing(request_: VerifyRequest) -> None:
    def start() -> Engine:
        raise AssertionError("something was started")

    with pytest.raises(UsageError, match=re.escape("nothing to compare: no log here has .deleted files")):
        certify_request(start, replace(request_, before=(), after=request_.before))


@pytest.mark.parametrize("name", ENGINES)
def test_files_are_searched_for_keys_and_patterns(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    write_odd(tmp_path)
    (tmp_path / "notes.txt").write_text("no batches")
    (tmp_path / "dumps").mkdir()
    criteria = KeyCriteria.of(pa.array([b"k"], pa.binary()), (KeyPattern.parse("regex=кл.*"),))
    files = [f"{tmp_path}/odd-0/{base:020d}.log" for base in (0, 10, 20)]
    files += [f"{tmp_path}/{each}" for each in ("notes.txt", "dumps/", "gone")]
    with engine(name, request) as runner:
        found = search_files(runner, files, ErasedKeys(criteria))
    assert [each.records for each in found] == [2, 2, 2, None, None, None]
    assert found == search_files(LocalPasses(), files, ErasedKeys(criteria))
    assert found[-1] == Remains(str(tmp_path / "gone"))


@pytest.mark.parametrize("name", ENGINES)
def test_an_erasure_has_the_same_certificate(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [random_case(flavour, 3) for flavour in FLAVOURS][:3]
    for case in cases:
        case.write(tmp_path / "before")
    keys = sorted({key for case in cases for key in keys_of(case)})[::3]
    assert erase(tmp_path / "before", keys, output_dir=tmp_path / "after", include_active=True).exit_code == 0
    (tmp_path / "after/old.dump").write_bytes(next((tmp_path / "before").rglob("*.log")).read_bytes())
    (tmp_path / "after/other.dump").write_bytes(Batch([Record(0, 1, b"another key", b"v")]).encode())
    asked = VerifyRequest((str(tmp_path / "before"),), (str(tmp_path / "after"),), RANDOM_NOW_MS, include_active=True)
    erased = ErasedKeys(KeyCriteria.of(pa.array(keys, pa.binary())))
    local = certify_erasure(LocalPasses, asked, erased)
    assert any(log["records_erased"] for log in local.logs)
    monkeypatch.setattr(certifier, "RANGE_BYTES", 1)
    with engine(name, request) as runner:
        found = certify_erasure(lambda: runner, asked, erased)
    assert (found.logs, document(found.report)) == (local.logs, document(local.report))
    assert found.report.elsewhere == local.report.elsewhere
    assert [(file.path, bool(file.records)) for file in local.report.elsewhere] == [(str(tmp_path / "after/old.dump"), True)]
