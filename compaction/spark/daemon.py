"""Forks Spark's Python workers from a process that has the kernels loaded; started by Spark instead of ``pyspark.daemon``.

A worker then begins its first task at once, and workers share the pages of what was loaded. Spark puts zip files and jars on
the module path, and each task makes Python read their directories anew; where PySpark is installed as well, they are taken off
the path.

``spark.python.daemon.module`` names this module. It must be importable before a task's own files are there: locally, or on
executors whose environment holds this package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import daemon

from compaction.passes import ahead
from compaction.spark.kernels import PASSES
from compaction.spark.worker import settle


def forget_archives() -> None:
    """Take zip files and jars off the module path, if PySpark is found without them."""
    kept = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    if any((Path(place) / "pyspark" / "worker.py").is_file() for place in kept):
        sys.path[:] = kept
        for place in list(sys.path_importer_cache):
            if place.endswith((".zip", ".jar")) or ".zip/" in place:
                del sys.path_importer_cache[place]


def load() -> None:
    """Import what tasks use, and load the kernels that are compiled."""
    import compaction.spark.pipeline  # noqa: F401

    missing = ahead.missing(*PASSES)
    ahead.load(*(group for group in PASSES if group not in missing))


if __name__ == "__main__":
    load()
    forget_archives()
    settle()
    daemon.manager()
