"""``compaction.read_arrow``: the rows of the data source as batches of Arrow, without Spark and as they are asked for."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

import compaction
from compaction.errors import StorageError, UsageError
from compaction.files import calls
from tests.dumping.segments import write_segment
from tests.large_log import END_OFFSET, KEYS, write_large_log
from tests.source.plain_consumer import read_rows
from tests.source.random_partition import FLAVOURS, write_random


@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_the_rows_are_those_of_the_data_source(tmp_log_dir: Path, flavour: str) -> None:
    write_random(tmp_log_dir, flavour, 1)
    read = compaction.read_arrow(tmp_log_dir, options={"batchColumns": True, "includeControl": True})
    assert read.read_all().to_pylist() == read_rows(tmp_log_dir, batchcolumns="true", includecontrol="true")
    for view in ("latest", "changes"):
        assert compaction.read_arrow(tmp_log_dir, view=view).read_all().to_pylist() == read_rows(tmp_log_dir, view=view)


def test_duckdb_reads_it(sample: Path) -> None:
    latest = compaction.read_arrow(sample, "orders", view="latest", columns=["partition", "offset", "superseded"])
    with duckdb.connect() as connection:
        found = connection.from_arrow(latest).aggregate("count(*), sum(superseded)").fetchall()
    expected = read_rows(sample, topic="orders", view="latest")
    assert found == [(len(expected), sum(row["superseded"] for row in expected))]


def test_a_log_that_a_batch_does_not_hold_is_read_in_threads_of_a_process_without_a_jvm(tmp_log_dir: Path) -> None:
    write_large_log(tmp_log_dir)

    def offsets(_: int) -> list[int]:
        read = compaction.read_arrow(tmp_log_dir, "orders", columns="offset,value")
        return [offset for batch in read for offset in batch.column("offset").to_pylist()]

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(offsets, range(3)):
            assert found == list(range(END_OFFSET))
    program = "import sys, compaction; t = compaction.read_arrow(sys.argv[1], view='latest').read_all()"
    shown = "print(t.num_rows, 'pyspark' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}; {shown}", tmp_log_dir],
        env={**os.environ, "JAVA_HOME": "/nowhere"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.stdout.split() == [str(KEYS + 1), "False"], ran.stderr


def test_a_reader_that_is_left_ends_its_call(sample: Path) -> None:
    address = f"file://{sample}"
    before = len(calls._open)
    read = compaction.read_arrow(address, "orders")
    read.read_next_batch()
    assert len(calls._open) == before + 1
    del read
    gc.collect()
    assert len(calls._open) == before


def test_the_call_of_a_reader_is_not_that_of_the_code_which_reads(sample: Path) -> None:
    outer = calls._current.get()
    read = compaction.read_arrow(sample, "orders")
    assert calls._current.get() is outer
    with calls.call():
        inner = calls._current.get()
        assert read.read_next_batch().num_rows
        assert calls._current.get() is inner
    read.read_all()
    assert calls._current.get() is outer


def test_a_file_that_is_changed_before_it_is_read_is_refused(tmp_log_dir: Path) -> None:
    made = write_segment(tmp_log_dir / "orders-0")
    read = compaction.read_arrow(tmp_log_dir)
    with made.path.open("ab") as file:
        file.write(bytes(8))
    with pytest.raises(StorageError, match="was changed after this read was planned"):
        read.read_all()


def test_what_cannot_be_read_is_said_at_once(sample: Path) -> None:
    with pytest.raises(UsageError, match="no topic here matches 'other'"):
        compaction.read_arrow(sample, "other")
    with pytest.raises(UsageError, match="column superseded needs the option view"):
        compaction.read_arrow(sample, columns="superseded")
    with pytest.raises(UsageError, match="kafka_log has no option 'colour'"):
        compaction.read_arrow(sample, options={"colour": 1})
    with pytest.raises(UsageError, match="is neither latest nor changes"):
        compaction.read_arrow(sample, view="newest")


def test_options_are_those_of_the_data_source(sample: Path) -> None:
    ends = json.dumps({"orders": {"0": 0}})
    read = compaction.read_arrow([sample], "orders", columns="partition", options={"endingOffsets": ends}).read_all()
    assert set(read["partition"].to_pylist()) == {1, 2}
