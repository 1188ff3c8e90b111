"""The class path of any Kafka since 2.8, resolved by Spark's own ``spark.jars.packages`` so that no other build tool is needed.

Spark uses the registry, the cache and the proxies that the user has configured; this module names only coordinates. The
result is stored beside Spark's own cache and is reused as long as all of its jars exist.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

#: the version that is the judge if none is named, and its rules
REFERENCE = "4.4.0"
REFERENCE_RULES = REFERENCE.rpartition(".")[0]
#: each minor version's last release, and the releases within a minor version between which the cleaner's rules changed
VERSIONS = (
    "2.8.2", "3.0.2", "3.1.2", "3.2.3", "3.3.2", "3.4.1", "3.5.2", "3.6.2", "3.7.2", "3.8.1", "3.9.1", "3.9.2",
    "4.0.0", "4.0.2", "4.1.2", "4.2.2", "4.3.1", "4.4.0",
)  # fmt: skip
#: Kafka's command line tools, the log dump tool among them: those of 4.4.0 were never published, nor were their interfaces
TOOLS_RELEASE = "4.3.1"
KAFKA_TOOLS = f"org.apache.kafka:kafka-tools:{TOOLS_RELEASE}"

LOGGING_CONFIG = Path(__file__).with_name("log4j2.properties")

#: run by spark-submit: its JVM was started with the resolved jars as ``spark.jars``
_PRINT_JARS = """
from pyspark.java_gateway import launch_gateway
print("jars=" + launch_gateway().jvm.java.lang.System.getProperty("spark.jars"))
"""
_TEST_JAR = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="tests"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka-storage" rev="{version}" transitive="false">
      <artifact name="kafka-storage" type="jar" ext="jar" m:classifier="test"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
#: pyspark's jars: the Scala library, which Spark never resolves, a logger for slf4j 2 and for log4j 1, and the gateway
_FROM_SPARK = (
    "scala-library-*.jar", "slf4j-api-2*.jar", "log4j-slf4j2-impl-*.jar", "log4j-1.2-api-*.jar", "log4j-api-*.jar",
    "log4j-core-*.jar", "py4j-*.jar",
)  # fmt: skip
#: Kafka's own, before 4.0 of slf4j 1 and log4j 1, are replaced by those
_LEFT_OUT = ("slf4j", "log4j")
#: a dependency of 4.4.0 that was never published; its classes are used by command line tools only
_UNPUBLISHED = {"4.4.0": "org.apache.kafka:kafka-tools-api"}

#: a registry may fail temporarily
_TRIES, _PAUSE_S = 3, 5.0


class JarsUnavailableError(RuntimeError):
    """Spark could not resolve Kafka's jars (no network and an empty cache, most likely)."""


def spark_home() -> Path:
    """The directory of the installed pyspark, which is a complete Spark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsUnavailableError("pyspark is not installed")
    return Path(spec.origin).parent


@lru_cache(maxsize=64)
def kafka_classpath(*more: str, version: str = REFERENCE) -> str:
    """The class path that runs Kafka, quietly, with the further ``more`` coordinates (e.g. ``KAFKA_TOOLS``).

    :raises JarsUnavailableError: Spark could not resolve it
    """
    found = _resolve((f"org.apache.kafka:kafka_2.13:{version}", *more), _UNPUBLISHED.get(version, ""))
    resolved = [jar for jar in found if not any(word in jar.name for word in _LEFT_OUT)]
    home = spark_home() / "jars"
    own = [match for pattern in _FROM_SPARK for match in sorted(home.glob(pattern))]
    return os.pathsep.join(str(jar) for jar in (*own, *resolved))


def maven_classpath(*coordinates: str) -> str:
    """The class path of other programs and all that they depend on.

    :raises JarsUnavailableError: Spark could not resolve it
    """
    return os.pathsep.join(map(str, _resolve(coordinates, "")))


def require_kafka_classpath(*more: str, version: str = REFERENCE) -> str:
    """As ``kafka_classpath``; if it is not available the test is skipped with the reason."""
    try:
        return kafka_classpath(*more, version=version)
    except JarsUnavailableError as error:
        pytest.skip(f"real Kafka {version} is not available: {error}")


def require_tools_classpath() -> str:
    """The class path of Kafka's command line tools; otherwise as ``require_kafka_classpath``."""
    return require_kafka_classpath(KAFKA_TOOLS, version=TOOLS_RELEASE)


def tiered_storage_jar(version: str) -> Path:
    """The test jar of kafka-storage with ``LocalTieredStorage``, resolved by Spark's Ivy: ``--packages`` takes no classifiers.

    The test is skipped with the reason if it is not available.
    """
    # it imports this module
    from tests.kafka.gateway import java_executable

    ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
    cache = _memory(("ivy",)).parent / "ivy"
    with tempfile.TemporaryDirectory() as scratch:
        module, found = Path(scratch) / "ivy.xml", Path(scratch) / "found"
        module.write_text(_TEST_JAR.format(version=version), encoding="utf-8")
        command = [java_executable(), "-jar", str(ivy), "-m2compatible", "-ivy", str(module), "-cache", str(cache)]
        done = subprocess.run([*command, "-cachepath", str(found)], capture_output=True, text=True, timeout=300, check=False)
        jar = Path(found.read_text(encoding="utf-8").strip()) if found.exists() else Path()
    if jar.is_file():
        return jar
    pytest.skip(f"the test jar of kafka-storage is not available: {done.stdout[-300:]}")


def _resolve(coordinates: tuple[str, ...], left_out: str) -> list[Path]:
    known = _memory(coordinates)
    known.parent.mkdir(parents=True, exist_ok=True)
    with known.with_suffix(".lock").open("w") as lock:
        # two processes that fill Spark's cache at once would conflict
        fcntl.flock(lock, fcntl.LOCK_EX)
        if known.exists():
            jars = [Path(line) for line in known.read_text(encoding="utf-8").splitlines()]
            if jars and all(jar.exists() for jar in jars):
                return jars
        for attempt in range(_TRIES):
            try:
                jars = _ask_spark(coordinates, left_out)
                break
            except (JarsUnavailableError, subprocess.TimeoutExpired):
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_PAUSE_S)
        known.write_text("\n".join(map(str, jars)), encoding="utf-8")
        return jars


def _memory(coordinates: tuple[str, ...]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(",".join(coordinates).encode()).hexdigest()[:16]
    return cache / "kafka-test-jars" / f"{digest}.txt"


def _ask_spark(coordinates: tuple[str, ...], left_out: str) -> list[Path]:
    home = spark_home()
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "print_jars.py"
        script.write_text(_PRINT_JARS, encoding="utf-8")
        command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
        command += ["--packages", ",".join(coordinates), *(["--exclude-packages", left_out] if left_out else []), str(script)]
        env = dict(os.environ, SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
        done = subprocess.run(command, env=env, cwd=scratch, capture_output=True, text=True, timeout=600, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("jars="):
            return [Path(unquote(urlparse(jar).path)) for jar in line.removeprefix("jars=").split(",")]
    last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
    raise JarsUnavailableError(f"spark-submit --packages {','.join(coordinates)} gave no jars: {' / '.join(last)}")
