"""Lets ``spark-submit`` of this environment start as fast as the console command: a ``spark-env.sh`` in its configuration
directory, which Spark's scripts read before they start the JVM.

The settings that a job can choose while it runs are those of ``compaction.spark.session``; these are the JVM's own. They apply
to this package's commands. The archive changes no behaviour and applies to all applications. Options of the user follow and
take precedence. A missing or old Java is reported in one line, with exit code 2. A file of the user is not replaced.
"""

from __future__ import annotations

import os
import shlex
from enum import Enum
from pathlib import Path

from compaction.startup.archive import C1_ONLY, USE, Versions, jvm_options
from compaction.startup.java_version import LEAST_FILES, OLDEST_JAVA

_FIRST_LINE = "# Written by kafka-log-compaction warm-up --spark-submit; it is replaced by the next one."
_LOGGING = Path(__file__).resolve().parents[1] / "spark" / "log4j2.properties"

#: the modules of ``jobs`` that ``spark-submit`` runs
COMMANDS = ("compact", "count_keys", "doctor", "dry_run", "dump_log", "erase", "expire", "verify")

#: begins the line of the template that has the archive's path
_ARCHIVE_LINE = "if [ -r "
_INCUBATOR = "--add-modules=jdk.incubator.vector"

_TEMPLATE = """\
{first_line}
# Shortens the start of Spark's JVM. Remove this file to do without.
_java=${{JAVA_HOME:+$JAVA_HOME/bin/java}}
_java=${{_java:-$(type -P java)}}
case "$*" in
  {commands})
    # Spark would end with an error of its own, or of the JVM
    _version=none
    if [ -x "$_java" ]; then
      _version=
      _release=$(readlink -f "$_java")
      _release=${{_release%/bin/java}}/release
      [ -r "$_release" ] || _release=/dev/null
      while IFS= read -r _line; do
        case $_line in JAVA_VERSION=*) _line=${{_line#*=?}}; _line=${{_line#1.}}; _version=${{_line%%[!0-9]*}} ;; esac
      done < "$_release"
      unset _release _line
    fi
    if [ "$_version" = none ] || {{ [ -n "$_version" ] && [ "$_version" -lt {oldest} ]; }}; then
      echo "error: needs Java {oldest} or newer, found $_version${{_java:+ at $_java}}; set JAVA_HOME to its directory" >&2
      exit 2
    fi
    unset _version
    _files=$(ulimit -Hn)
    if [ "$_files" != unlimited ] && [ "$_files" -lt {files} ]; then
      echo "error: a process may open $_files files here, Spark's JVM opens more at its start; set ulimit -n 4096" >&2
      exit 2
    fi
    unset _files
    # errors only; the second compiler does not pay off; shuffled data: 24 bytes per key and pass
    SPARK_SUBMIT_OPTS={options}" $SPARK_SUBMIT_OPTS"
    SPARK_DRIVER_MEMORY="${{SPARK_DRIVER_MEMORY:-2g}}"
    # The JVM warns of this module, which no option prevents. Spark adds it for linear algebra; these commands have none.
    exec() {{
      local option kept=()
      for option in "$@"; do
        [ "$option" = {module} ] || kept+=("$option")
      done
      builtin exec "${{kept[@]}}"
    }}
    # the last command of this shell uses it, not the JVM's own shells
    export -nf exec
    # the command's first line replaces it
    [ ! -t 2 ] || [ "${{TERM:-dumb}}" = dumb ] || printf 'starting spark-submit ...\\r' >&2
    ;;
esac
# The JVM uses an archive only if no directory on its class path has files: this one is left out if it has nothing else.
if [ -r {archive} ] && [ "$_java" -ef {java} ] \\
    && [ "$(echo "$SPARK_CONF_DIR"/*)" = "$SPARK_CONF_DIR/spark-env.sh" ]; then
  SPARK_CONF_DIR=$SPARK_CONF_DIR/none
  case "$SPARK_SUBMIT_OPTS" in
    *{use}*) ;;
    *) SPARK_SUBMIT_OPTS={archive_options}" $SPARK_SUBMIT_OPTS" ;;
  esac
fi
unset _java
"""


class State(Enum):
    """What is in Spark's configuration directory."""

    MISSING = "not written: run warm-up --spark-submit"
    WRITTEN = "written"
    OUTDATED = "for another archive or another directory: run warm-up --spark-submit"
    FOREIGN = "a file of the user, which is not replaced"


def file_of(versions: Versions) -> Path:
    """The file that ``spark-submit`` of this Spark reads."""
    return versions.spark_home / "conf" / "spark-env.sh"


def state(versions: Versions, archive: Path) -> State:
    """Whether ``spark-submit`` uses this archive, or the same one of another cache directory, as long as that is there: a run
    with a temporary cache directory leaves the file as it is."""
    try:
        found = file_of(versions).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return State.MISSING
    if not found.startswith(_FIRST_LINE):
        return State.FOREIGN
    named = _named_archive(found)
    if named is not None and named.name == archive.name and named.is_file():
        archive = named
    return State.WRITTEN if found == render(versions, archive) else State.OUTDATED


def _named_archive(text: str) -> Path | None:
    """The archive that a written file names."""
    line = next((line for line in text.splitlines() if line.startswith(_ARCHIVE_LINE)), None)
    return None if line is None else Path(shlex.split(line.rstrip("\\ "))[len(_ARCHIVE_LINE.split())])


def render(versions: Versions, archive: Path) -> str:
    """The file."""
    return _TEMPLATE.format(
        first_line=_FIRST_LINE,
        commands="|".join(f"*jobs/{each}.py*" for each in COMMANDS),
        oldest=OLDEST_JAVA,
        files=LEAST_FILES,
        options=shlex.quote(f"{C1_ONLY} -Dlog4j2.configurationFile={_LOGGING.as_uri()}"),
        archive=shlex.quote(str(archive)),
        java=shlex.quote(str(versions.java)),
        use=USE,
        module=_INCUBATOR,
        archive_options=shlex.quote(jvm_options(archive)),
    )


def write(versions: Versions, archive: Path) -> State:
    """Write the file unless there is one of the user; returns what is there now.

    :raises OSError: the directory cannot be written
    """
    if state(versions, archive) is not State.FOREIGN:
        file = file_of(versions)
        file.parent.mkdir(exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_text(render(versions, archive), encoding="utf-8")
        beside.replace(file)
    return state(versions, archive)
