"""Makes what later runs start faster with, once per version of this package, Java and Spark: compiled kernels, and an archive
of the classes of Spark's JVM. ``compaction.kernels.compiling.place`` says where they are stored.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compaction.cli import execution, option_groups
from compaction.errors import CompactionError
from compaction.startup import archive, spark_env
from compaction.startup.import_path import module_command

_DESCRIPTION = """\
Make what later runs start faster with: the compiled kernels of this package, and an archive of the
classes that Spark's JVM loads (about 90 MB), made by a small compaction. This takes about a minute,
and is needed once per version of this package, Java and Spark. Without it, kernels are compiled on
first use, and the archive is made in the background after the first run of this command's program.

What is stored belongs to the user and is not read if others may write to it. A JVM that an archive
does not fit runs without it.
"""

_EPILOG = """\
exit status:
  0  done; with --status: everything is made, and fits
  1  something could not be made; with --status: something is missing, or does not fit
  2  usage error

environment:
  NUMBA_CACHE_DIR  the directory, by default in the user's cache directory; /dev/null: no cache
"""

_NO_DIRECTORY = "no directory of this user that others may not write to: set NUMBA_CACHE_DIR to one"
_UNWRITABLE = "runs work without it, but start more slowly"
_NO_JAVA = "no Java or no Spark was found, or their layout is unknown"
_TRAINING_LIMIT_S = 300.0
#: after an attempt that failed
_RETRY_S = 86_400.0


def parser() -> option_groups.Parser:
    """The command's options."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    group = options.add_argument_group("what to do")
    group.add_argument("--status", action="store_true", help="only show what there is, and whether it fits")
    group.add_argument(
        "--spark-submit", action="store_true",
        help="also for spark-submit of this Spark: write conf/spark-env.sh below its home, unless the user has one there",
    )  # fmt: skip
    option_groups.add_logging(group)
    return options


def warm_up(*, spark_submit: bool) -> None:
    """Compiles the kernels and makes the archive, if they are missing.

    :raises CompactionError: something could not be made
    """
    found = archive.versions()
    if found is None:
        raise CompactionError(_NO_JAVA)
    file = archive.archive_file(found)
    if file is None:
        raise CompactionError(_NO_DIRECTORY)
    _compile_kernels()
    try:
        if archive.usable_archive() is None:
            archive.make_archive(file, lambda environment: _train(found, environment))
        # another version of Java or Spark was installed since it was written
        if spark_submit or spark_env.state(found, file) is spark_env.State.OUTDATED:
            spark_env.write(found, file)
    except OSError as error:
        raise CompactionError(f"cannot be written: {error.strerror}", path=error.filename, hint=_UNWRITABLE) from None


def warm_up_later() -> None:
    """Makes a missing archive for later runs, by a process of low priority that outlives this one; the run that needed it has
    ended. Once a day if that fails; not if the user configures Spark, because a JVM with files of the user on its class path
    uses no archive."""
    if "SPARK_CONF_DIR" in os.environ:
        return
    found = archive.versions()
    file = None if found is None else archive.archive_file(found)
    if file is None or archive.usable_archive() is not None or time.time() - archive.last_attempt_s(file) < _RETRY_S:
        return
    subprocess.Popen(  # noqa: S603 - this interpreter, this package
        ["nice", "-n", "19", *module_command("compaction", "warm-up")],  # noqa: S607
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _compile_kernels() -> None:
    from compaction.startup import kernel_groups

    kernel_groups.compile_all(*kernel_groups.missing(*kernel_groups.GROUPS))


def _train(versions: archive.Versions, environment: Mapping[str, str]) -> None:
    """Compacts a small log with ``spark-submit``."""
    with tempfile.TemporaryDirectory(prefix="kafka-log-compaction-") as scratch:
        _write_log(Path(scratch, "training-0"))
        options = ("--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--include-active")
        application = Path(__file__).resolve().with_name("compact.py")
        done = subprocess.run(  # noqa: S603 - this Spark, this package
            [versions.spark_home / "bin" / "spark-submit", application, "--log-dir", scratch, *options],
            cwd=scratch,
            env={
                **os.environ,
                **environment,
                "SPARK_HOME": str(versions.spark_home),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRAINING_LIMIT_S,
            check=False,
        )
    if done.returncode:
        last = (done.stderr + done.stdout).strip().splitlines()[-1:]
        raise CompactionError(f"the class-data archive could not be made: spark-submit ended with {done.returncode}: {last}")


def _write_log(log: Path) -> None:
    """A log of two records with the same key."""
    from compaction.formats.primitives.checksums import crc32c
    from compaction.formats.record_batch.batch_header import CRC_START, HEADER, LOG_OVERHEAD_BYTES, MAGIC, BatchHeader
    from compaction.formats.record_batch.record import NO_SEQUENCE, Record, RecordBase, encode_records

    records = encode_records([Record(offset, 0, b"key", b"value") for offset in (0, 1)], RecordBase(0, 0, NO_SEQUENCE))
    length = HEADER.size + len(records) - LOG_OVERHEAD_BYTES
    batch = bytearray(HEADER.pack(BatchHeader(0, length, 0, MAGIC, 0, 0, 1, 0, 0, -1, -1, NO_SEQUENCE, 2)) + records)
    HEADER.put(batch, "crc", crc32c(memoryview(batch)[CRC_START:]))
    log.mkdir()
    (log / f"{0:020d}.log").write_bytes(batch)


class Part(NamedTuple):
    """One part of what is stored, and whether it is made and fits."""

    name: str
    found: str
    usable: bool = True


def status() -> list[Part]:
    """What is stored for later runs."""
    from compaction.kernels.compiling.cache import fingerprint, process_cache_dir
    from compaction.startup import kernel_groups

    place = process_cache_dir()
    missing = kernel_groups.missing(*kernel_groups.GROUPS)
    if place is None:
        parts = [Part("kernels", _NO_DIRECTORY, False)]
    else:
        kernels, state = place / fingerprint(), f"missing: {', '.join(missing)}" if missing else "all compiled"
        parts = [Part("kernels", f"{kernels}: {_size(kernels)}; {state}", not missing)]
    found = archive.versions()
    file = None if found is None else archive.archive_file(found)
    if found is None or file is None:
        return [*parts, Part("archive", _NO_JAVA if found is None else _NO_DIRECTORY, False)]
    usable = archive.usable_archive() is not None
    return [
        *parts,
        Part("archive", f"{file}: {f'{_size(file)}; fits' if usable else found.explain(file)}", usable),
        Part("Java, Spark", f"{found.java}, {found.spark_home}"),
        Part("spark-submit", f"{spark_env.file_of(found)}: {spark_env.state(found, file).value}"),
    ]


def show_status() -> int:
    """Prints a line for each part; returns the exit code."""
    parts = status()
    for part in parts:
        print(f"{part.name:<13} {part.found}")
    return 0 if all(part.usable for part in parts) else execution.FAILED


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [each for each in path.glob("*") if each.is_file()]
    return f"{sum(each.stat().st_size for each in files) / 1e6:.1f} MB"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    :param argv: the arguments; ``None``: those of the process
    """

    def body(arguments: argparse.Namespace) -> int:
        if arguments.status:
            return show_status()
        warm_up(spark_submit=arguments.spark_submit)
        return show_status()

    return execution.run_command(parser(), argv, body)
