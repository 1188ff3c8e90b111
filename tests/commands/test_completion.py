"""The script is run by a real bash, and completes commands, options and names of files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest

from compaction.cli.console import COMMANDS
from compaction.commands import completion

ROOT = Path(__file__).resolve().parents[2]

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
    printed = subprocess.run(
        [sys.executable, "-m", "jobs", "completion", "bash"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    script = tmp_path / "script"
    script.write_text(printed.stdout)
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker.properties").touch()

    def candidates(*words: str) -> set[str]:
        line = ["bash", "-c", COMPLETE, "bash", str(script), "kafka-log-compaction", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        return {word.rstrip("/") for word in done.stdout.split()}

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
    assert [command for command, _, _ in COMMANDS if command not in script] == []
