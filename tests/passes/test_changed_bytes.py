"""Bytes that change between the passes, under a checksum that remains: no output has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction.engine import Job
from compaction.report import LogStatus
from compaction.run.compact import clean_logs
from tests.kafka.encode import Batch, Legacy, Record
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.oracle.disk import write_partition
from tests.oracle.segments import write_segment

NOW_MS = 1_800_000_000_000
TOPICS = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_segment_whose_bytes_changed_since_the_first_pass_fails_its_log(tmp_path: Path, magic: int, codec: str) -> None:
    records = [Record(offset, NOW_MS, b"%d" % (offset % 4), b"value") for offset in range(6)]
    together = 1 if codec == "none" else 2
    chosen = [records[at : at + together] for at in range(0, len(records), together)]
    sets = [Batch(each, codec) if magic == 2 else Legacy(each, magic, codec) for each in chosen]
    write_partition(tmp_path / "t-0", [write_segment(0, [each.encode() for each in sets], 4096, NOW_MS)])
    log = tmp_path / "t-0" / f"{0:020d}.log"
    whole = log.read_bytes()

    class Changed(LocalPasses):
        def run(self, job: Job, *args: Any) -> Any:
            if job.name == "pass 2":
                # the last byte of a value, or of the checksum in a payload of gzip
                data = bytearray(log.read_bytes())
                data[-1] ^= 1
                log.write_bytes(data)
            return super().run(job, *args)

    (report,) = clean_logs(Changed, request_for(tmp_path, NOW_MS, TOPICS, include_active=True)).logs
    assert report.status is LogStatus.FAILED
    assert "fails its CRC" in report.reason
    assert log.read_bytes() == whole[:-1] + bytes([whole[-1] ^ 1])
    assert not [path for path in log.parent.iterdir() if path.suffix not in (".log", ".index", ".timeindex")]
