"""The job as a user calls it, in this process and on a shared Spark session."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.commands import compact, expire
from compaction.engine_choice import EngineChoice
from compaction.options.table import LOCAL, SPARK
from compaction.run.compact import clean_logs
from tests.executed import executed
from tests.local_job import KAFKA
from tests.local_passes import LocalPasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean_ours(spark: SparkSession, log_dir: Path, as_of_ms: int, *options: str) -> dict[str, dict[str, Any]]:
    """Runs ``jobs/compact.py`` over a log directory in place; returns the report's entries by log name.

    Logs with invalid records are cleaned, as Kafka does. By default the rules are those of the Kafka that tests compare with.
    """

    def run(argv: list[str]) -> int:
        engine, execute = EngineChoice(SPARK, "", "compact", session=spark), compact.execute
        return executed(compact, argv, lambda _, request: execute(engine, request))

    version = () if "--kafka-version" in options else ("--kafka-version", KAFKA)
    return run_job(run, log_dir, as_of_ms, "--allow-keyless", *version, *options)


def clean_in_process(log_dir: Path, as_of_ms: int, *options: str) -> dict[str, dict[str, Any]]:
    """The same without Spark."""

    def run(argv: list[str]) -> int:
        return executed(compact, argv, lambda _, request: clean_logs(LocalPasses, request))

    return run_job(run, log_dir, as_of_ms, "--allow-keyless", *options)


def expire_ours(log_dir: Path, as_of_ms: int, *options: str) -> dict[str, dict[str, Any]]:
    """Runs ``jobs/expire.py`` over a log directory; so few logs need no session."""

    def run(argv: list[str]) -> int:
        engine, execute = EngineChoice(LOCAL, "", "expire"), expire.execute
        return executed(expire, argv, lambda _, request: execute(engine, request))

    return run_job(run, log_dir, as_of_ms, *options)


def run_job(main: Callable[[list[str]], int], log_dir: Path, as_of_ms: int, *options: str) -> dict[str, dict[str, Any]]:
    """Runs a job's ``main`` and reads its report; raises if the exit code does not match the report."""
    report = log_dir.parent / f"{log_dir.name}-report.json"
    report.unlink(missing_ok=True)
    argv = ["--verbose", "--log-dir", str(log_dir), "--as-of-ms", str(as_of_ms), "--report", str(report), *options]
    code = main(argv)
    if not report.exists():
        raise AssertionError(f"the job ended with {code} and wrote no report: see its error on standard error")
    document = json.loads(report.read_text(encoding="utf-8"))
    if code != (1 if document["status"] == "failed" else 0):
        raise AssertionError(f"exit code {code}, status {document['status']}")
    return {f"{log['topic']}-{log['partition']}": log for log in document["logs"]}


def topics_file(path: Path, topics: Mapping[str, Mapping[str, str]]) -> Path:
    """A configuration file for ``--config`` with these topic-level settings."""
    lines = []
    for topic, config in topics.items():
        lines += [f'[topics."{topic}"]', *(f'"{name}" = "{value}"' for name, value in config.items()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
