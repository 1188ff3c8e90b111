"""The class-data archive of Spark's JVM: the classes that a run loads, parsed and verified in advance.

The JVM maps the archive into its memory and starts in two thirds of the time. An archive fits only the Java and the jars it was
made with, so its name identifies both. Code is run from it: it is stored beside the compiled kernels, in a directory and in a
file that nobody else may write to (see ``compaction.kernels.compiling.place``).

A JVM that rejects its archive runs without it and does not say so. It rejects every archive if a directory on its class path
contains files; the first one there is Spark's configuration directory.

"Class Data Sharing" in the documentation of ``java``; ``DynamicArchive`` in the sources of OpenJDK 17.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from compaction.kernels.compiling.ownership import is_private_file
from compaction.kernels.compiling.place import cache_dir
from compaction.startup.java_version import find_java

#: option of a command's JVM: code of the second compiler does not pay off in its short life
C1_ONLY = "-XX:TieredStopAtLevel=1"
#: the name of the option with the archive
USE = "-XX:SharedArchiveFile"
_MAKE = "-XX:ArchiveClassesAtExit"
#: an archive that does not fit costs time but is no error
QUIET = "-Xlog:cds*=off"
_PREFIX = "spark-"
_SUFFIX = ".jsa"
#: archives have 90 MB; those of other versions of Java and Spark are removed except for the most recent one
_KEPT = 2


@dataclass(frozen=True)
class Versions:
    """The Java and the Spark that a command of this process starts."""

    java: Path
    spark_home: Path

    @property
    def file_name(self) -> str:
        """The name of the archive for these versions."""
        return f"{_PREFIX}{self._java_id()}-{self._jars_id()}{_SUFFIX}"

    def _java_id(self) -> str:
        # each version has its own classes; every JDK and JRE since 9 has this file
        modules = (self.java.parent.parent / "lib" / "modules").stat()
        return _digest(str(self.java), modules.st_size, modules.st_mtime_ns)

    def _jars_id(self) -> str:
        # the JVM compares the path, size and time of each jar
        with os.scandir(self.spark_home / "jars") as entries:
            found = sorted((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in entries)
        return _digest(str(self.spark_home), *found)

    def explain(self, archive: Path) -> str:
        """Why there is no such archive, from those that there are."""
        others = [each.name for each in archive.parent.glob(f"{_PREFIX}*{_SUFFIX}")]
        java = archive.name.split("-")[1]
        if any(java in name for name in others):
            return "other jars: made with another version of Spark"
        return "another Java: made with another version of Java" if others else "not made yet"


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def versions() -> Versions | None:
    """The Java and Spark of this environment, as Spark's scripts find them; ``None`` if there is none."""
    java = find_java()
    spark_home = os.environ.get("SPARK_HOME") or _packaged_spark()
    if not java or not spark_home:
        return None
    found = Versions(java, Path(spark_home).resolve())
    try:
        return found if found.file_name else None
    except OSError:
        # a Java or Spark of another layout
        return None


def _packaged_spark() -> str | None:
    spec = find_spec("pyspark")
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None  # noqa: PTH120


def archive_file(found: Versions) -> Path | None:
    """Where the archive for these versions is, or would be; ``None`` if there is no directory for it."""
    directory = cache_dir(lambda: found.file_name)
    return directory and directory / found.file_name


def usable_archive() -> Path | None:
    """The archive for the JVM that this process starts, if there is one that only this user can have written."""
    found = versions()
    archive = None if found is None else archive_file(found)
    return archive if archive and is_private_file(str(archive)) else None


def jvm_options(archive: Path) -> str:
    """Options that let a JVM use an existing archive, quoted for Spark's scripts. If the file is missing, a JVM loses its own
    archive, too."""
    return f'"{USE}={archive}" {QUIET}'


def make_archive(archive: Path, train: Callable[[Mapping[str, str]], None]) -> None:
    """Make an archive. If another process is making it, wait for that.

    :param train: runs an application with ``spark-submit`` with these additional environment variables; the JVM writes the
        archive when it ends
    :raises OSError: the archive cannot be written
    """
    with _locked(archive):
        if is_private_file(str(archive)):
            return
        # a name of this process: one that was killed may have left a part
        made = archive.with_suffix(f".{os.getpid()}.tmp")
        try:
            train(
                {
                    "SPARK_SUBMIT_OPTS": f'{C1_ONLY} {QUIET} "{_MAKE}={made}"',
                    # the JVM makes no archive if this directory exists and has files
                    "SPARK_CONF_DIR": str(archive.with_suffix(".conf")),
                }
            )
            made.chmod(0o600)
            made.replace(archive)
        finally:
            made.unlink(missing_ok=True)
    _remove_others(archive)


def last_attempt_s(archive: Path) -> float:
    """When a process last began to make this archive, in seconds since the epoch; 0 if none did."""
    try:
        return archive.with_suffix(".lock").stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _locked(archive: Path) -> Iterator[None]:
    """Holds the archive's lock, which is released even if this process is killed. Its time is that of the latest attempt."""
    lock = os.open(archive.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(lock)
        yield
    finally:
        os.close(lock)


def _remove_others(archive: Path) -> None:
    archives = sorted(archive.parent.glob(f"{_PREFIX}*{_SUFFIX}"), key=lambda each: each.stat().st_mtime)
    for old in archives[:-_KEPT]:
        old.unlink(missing_ok=True)
        old.with_suffix(".lock").unlink(missing_ok=True)
