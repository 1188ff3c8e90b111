"""Runs, comparisons and the delete policy on Spark; the session is started only if there is work for it.

Tested by ``tests/compare/test_compare_policies.py`` and ``tests/jobs/test_odd_names.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from compaction.config.request import CompactionRequest, ComparisonRequest
from compaction.engine.clean import Workers, clean_logs
from compaction.engine.delete import delete_old_segments
from compaction.report import RunReport
from compaction.spark.parallel_read import spark_parallel_read
from compaction.spark.progress import Progress

if TYPE_CHECKING:
    from compaction.compare.figures import Comparison
    from compaction.spark.session import Session


def compact(
    session_factory: Callable[[], Session], request: CompactionRequest, progress: Progress | None = None
) -> RunReport:
    """Cleans the logs of ``request``.

    :param progress: shows the progress of the passes
    :raises UsageError: a log directory is locked, or the selectors match nothing
    """

    def start() -> Workers:
        # a run without work does not import Spark
        from compaction.spark.pipeline import SparkPasses

        sc = session_factory().sparkContext
        return Workers(lambda sizes: SparkPasses(sc, sizes, progress), sc.defaultParallelism)

    return clean_logs(start, request, parallel_read=spark_parallel_read(session_factory))


def expire(session_factory: Callable[[], Session], request: CompactionRequest) -> RunReport:
    """Applies the delete policy to the logs of ``request``; Spark only reads very many segments.

    :raises UsageError: a log directory is locked, or the selectors match nothing
    """
    return delete_old_segments(request, spark_parallel_read(session_factory))


def compare(
    session_factory: Callable[[], Session], request: ComparisonRequest, progress: Progress | None = None
) -> Comparison:
    """Compares the policies of ``request``.

    :param progress: shows the progress of the passes
    :raises UsageError: the selectors match nothing
    :raises ConfigError: a policy contradicts itself or the rest of the configuration
    """

    from compaction.compare.compare_policies import ComparisonWorkers, compare_with

    def start() -> ComparisonWorkers:
        from compaction.spark.comparison_jobs import SparkEngine

        sc = session_factory().sparkContext
        return ComparisonWorkers(lambda sizes: SparkEngine(sc, sizes, progress), sc.defaultParallelism)

    return compare_with(start, request, parallel_read=spark_parallel_read(session_factory))
