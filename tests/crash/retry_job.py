"""The job with a fault, on a separate Spark: ``python -m tests.crash.retry_job LOG_DIR MASTER FAULT``.

Prints the numbers of failed and of speculative task attempts as JSON; the exit code is the job's.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from compaction.engine import Job
from compaction.engines.spark import SparkEngine
from compaction.engines.spark_session import build_session
from compaction.run.compact import clean_logs
from compaction.run.run import Environment
from compaction.run.sizing import Sizes
from tests.crash.faulty_tasks import FAULTS, MARKS, one_by_one
from tests.damage.valid_logs import NOW_MS
from tests.jvm import executor_options
from tests.local_job import request_for

R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[2]
#: so small that each log has several slices, shards, groups and output parts
SIZES = Sizes(slice_bytes=1_000, scan_bytes=2_000, shard_entries=20)
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "index.interval.bytes": "100",
    "internal.segment.bytes": "4000",
}


class FaultyEngine(SparkEngine):
    """Tasks of pass 2 have the fault ``fault``."""

    fault = ""

    def run(self, job: Job, source: Any, work: Any) -> list[Any]:
        if job.name != "pass 2":
            return super().run(job, source, work)
        self.before_pass_2()
        return super().run(job, source, partial(work, clean=partial(one_by_one, FAULTS[self.fault], work.keywords["clean"])))

    def before_pass_2(self) -> None: ...


class LostShuffle(FaultyEngine):
    """Between the passes, lose the shuffle files of the first."""

    def before_pass_2(self) -> None:
        lost = [path for path in Path(os.environ["SPARK_LOCAL_DIRS"]).rglob("shuffle_*") if path.is_file()]
        assert lost
        for path in lost:
            path.unlink()


def main(log_dir: Path, master: str, fault: str) -> int:
    """Clean all logs of ``log_dir``."""
    topics = {path.name.rsplit("-", 1)[0]: CONFIG for path in log_dir.iterdir() if path.is_dir()}
    session = build_session(
        "retries",
        extra={
            "spark.master": master,
            "spark.ui.enabled": "false",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            f"spark.executorEnv.{MARKS}": os.environ[MARKS],
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.multiplier": "1.2",
            "spark.speculation.efficiency.enabled": "false",
            "spark.executor.memory": "512m",
            **executor_options(),
            # for what is lost: in place of three times 5 s
            "spark.shuffle.io.retryWait": "100ms",
        },
    )
    passes = (FaultyEngine if fault == "twice" else LostShuffle)(session.sparkContext)
    passes.fault = fault
    report = clean_logs(lambda: passes, request_for(log_dir, NOW_MS, topics), Environment(sizes=SIZES))
    print(json.dumps({"failed": [log.reason for log in report.logs if log.status.value == "failed"]}))
    session.stop()
    return report.exit_code


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_DIRS"] = tempfile.mkdtemp(prefix="retries-")
    try:
        code = main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    finally:
        shutil.rmtree(os.environ["SPARK_LOCAL_DIRS"], ignore_errors=True)
    sys.exit(code)
