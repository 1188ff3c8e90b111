"""Options of the JVMs that tests start, and archives of the classes that they load: a JVM with one takes half of the processor
time to start.

``python -m tests.jvm`` writes the archives, once for an environment. A JVM without one, or with that of another Java or class
path, only takes longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: of Spark's JVMs and of brokers of the reference version
SPARK_CLASSES, BROKER_CLASSES = (Path(sys.prefix) / f"classes-of-{name}.jsa" for name in ("spark", "brokers"))
#: they may have another class path than the archive
_QUIET = ("-Xlog:cds=error", "-Xlog:cds+dynamic=error", "-Xlog:class+path=error")


def with_classes(archive: Path) -> tuple[str, ...]:
    """The options of a JVM that uses an archive if it has been written."""
    return (*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else SHORT_LIVED


def spark_variables(*options: str) -> dict[str, str]:
    """The environment variables with the options of the JVMs that Spark's scripts start: a driver's, which may have other
    ``options``, a daemon's, and that of the process that assembles their commands."""
    driver = " ".join(options or with_classes(SPARK_CLASSES))
    daemon = " ".join(with_classes(SPARK_CLASSES))
    return {"SPARK_SUBMIT_OPTS": driver, "SPARK_DAEMON_JAVA_OPTS": daemon, "SPARK_LAUNCHER_OPTS": " ".join(SHORT_LIVED)}


def executor_options() -> dict[str, str]:
    """The setting with the options of separate executors."""
    return {"spark.executor.extraJavaOptions": " ".join(with_classes(SPARK_CLASSES))}


def _writing(archive: Path) -> tuple[str, ...]:
    archive.unlink(missing_ok=True)
    return (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={archive}", *_QUIET)


def archive_spark() -> None:
    """Runs some of all that tests do with a session."""
    from compaction.engines.spark_session import build_session

    os.environ.update(spark_variables(*_writing(SPARK_CLASSES)))
    session = build_session("classes", extra={"spark.master": "local[2]", "spark.ui.enabled": "false"})
    context = session.sparkContext
    context.parallelize(range(8), 2).map(lambda each: (each % 3, each)).reduceByKey(max).collect()
    frame = session.createDataFrame([(number, b"%d" % (number % 7)) for number in range(50)], "id long, key binary")
    frame.createOrReplaceTempView("numbers")
    session.sql("select key, count(*), max(id) from numbers where id > 3 group by key order by key").collect()
    frame.mapInArrow(lambda batches: batches, frame.schema).collect()
    gateway = context._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def archive_broker() -> None:
    """Starts and stops a broker."""
    from tests.kafka.broker import Broker

    with tempfile.TemporaryDirectory() as directory:
        Broker(Path(directory), java_options=_writing(BROKER_CLASSES)).close()


if __name__ == "__main__":
    archive_broker()
    archive_spark()
