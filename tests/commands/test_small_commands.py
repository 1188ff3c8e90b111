"""Completion, the compilation of kernels, and what commands without work import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest

from compaction.cli.console import COMMANDS
from compaction.commands import completion, warm_up
from compaction.kernels import all_kernels, cache
from tests.processes import output_of, run

#: completes the last word of a line, and prints the candidates
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
function=$(complete -p kafka-log-compaction | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" kafka-log-compaction "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.slow
def test_bash_completes_commands_options_and_files(tmp_path: Path, missing: Callable[[str], None]) -> None:
    if shutil.which("bash") is None:
        missing("bash")
    script = tmp_path / "script"
    script.write_text(run("completion", "bash").stdout)
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker.properties").touch()

    def candidates(*words: str) -> set[str]:
        line = ["bash", "-c", COMPLETE, "bash", str(script), "kafka-log-compaction", *words]
        return {word.rstrip("/") for word in output_of(line, cwd=tmp_path).split()}

    assert {"compact", "dry-run", "dump-log", "warm-up"} <= candidates("")
    assert candidates("co") == {"compact", "count", "completion"}
    assert candidates("compact", "--output-d") == {"--output-dir"}
    assert {"broker-1"} <= candidates("compact", "--output-dir", "bro")
    assert "broker.properties" not in candidates("compact", "--output-dir", "bro")
    assert {"broker.properties"} <= candidates("compact", "--config", "bro")
    assert candidates("compact", "--log-format", "j") == {"json"}


def test_what_completion_needs_is_installed_with_the_package() -> None:
    """And not by an extra, or by an installation for tests."""
    found = requires("kafka-log-compaction") or []
    assert any(each.startswith("shtab") and "extra" not in each for each in found)


@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh", "zsh"])
def test_each_shell_has_a_script_that_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main([shell]) == 0
    script = capsys.readouterr().out
    assert [command for command in COMMANDS if command not in script] == []


def warmed(cache: Path | str, *options: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that finds no Java."""
    return run("warm-up", *options, without=("NUMBA", "SPARK", "JAVA"), NUMBA_CACHE_DIR=str(cache), PATH="")


def test_the_status_compiles_nothing(tmp_path: Path) -> None:
    done = warmed(tmp_path / "cache", "--status")
    assert (done.returncode, done.stderr) == (1, "")
    assert "so far" in done.stdout
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_cache_nothing_is_compiled() -> None:
    done = warmed(os.devnull)
    assert (done.returncode, done.stdout) == (1, "")
    assert "set NUMBA_CACHE_DIR" in done.stderr


def test_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(cache, "are_all_compiled", lambda: bool(compiled))
    monkeypatch.setattr(all_kernels, "compile_all", lambda: compiled.append(True))
    assert [warm_up.main([]), warm_up.main([])] == [0, 0]
    assert compiled == [True]
    assert "all compiled" in capsys.readouterr().out


@pytest.mark.slow
def test_all_kernels_are_compiled(tmp_path: Path) -> None:
    done = warmed(tmp_path / "cache")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all compiled" in done.stdout
    assert warmed(tmp_path / "cache", "--status").stdout == done.stdout


LARGE = ("numba", "llvmlite", "pyarrow", "pyspark", "cryptography", "compaction.run")
#: runs a command and prints its exit code, and which of ``LARGE`` it has imported
SCRIPT = f"""
import sys
from compaction.cli.console import main
code = main(sys.argv[1:])
print(code, *sorted(sys.modules.keys() & {set(LARGE)!r}))
"""


CHANGING = ("compact", "expire")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        *((f"{command} --log-dir local-tiered+file://EMPTY --allow-empty", "2 compaction.run") for command in CHANGING),
        *((f"{command} --log-dir MISSING", "2") for command in (*CHANGING, "dry-run")),
        *((f"{command} --log-dir EMPTY --allow-empty", "0") for command in CHANGING),
        *((f"{command} --log-dir EMPTY --allow-empty --output-dir OUT", "0 compaction.run") for command in CHANGING),
        *((f"{command} --help", "0") for command in COMMANDS),
    ],
)
def test_a_command_without_work_imports_nothing_large(arguments: str, found: str, tmp_log_dir: Path, tmp_path: Path) -> None:
    places = {"EMPTY": tmp_log_dir, "OUT": tmp_path / "out", "MISSING": tmp_path / "missing"}
    for name, place in places.items():
        arguments = arguments.replace(name, str(place))
    # the last line has the exit code, and what was imported
    assert output_of([sys.executable, "-c", SCRIPT, *arguments.split()]).splitlines()[-1] == found
