"""Layouts of exports are found without their package's metadata, and other packages add their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compaction.commands import completion
from compaction.errors import UsageError
from compaction.exports import GROUP, LAYOUTS, OWN, ExportLayout, Layouts
from tests.log.logs import data_batch

ROOT = Path(__file__).parents[2]


def install(directory: Path, entries: dict[str, str]) -> Layouts:
    """The metadata of a package with these entry points; returns the layouts that are found with it."""
    package = directory / "other-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (package / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(lines)}")
    return Layouts()


def test_the_layouts_of_this_package_are_found() -> None:
    assert list(LAYOUTS) == sorted(OWN)
    assert all(isinstance(LAYOUTS[name], ExportLayout) for name in LAYOUTS)


def test_another_package_adds_a_layout_but_does_not_replace_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "flat.py").write_text(
        "from compaction.exports import ExportLayout\nLAYOUT = ExportLayout('flat files', None, None)\n"
    )
    entries = {"flat": "flat:LAYOUT", "aiven": "flat:LAYOUT", "gone": "nowhere:LAYOUT", "text": "flat:__name__"}
    layouts = install(tmp_path, entries)
    assert all(name in layouts for name in entries)
    assert layouts["flat"].title == "flat files"
    assert layouts["aiven"] is LAYOUTS["aiven"]
    for name, message in (
        ("gone", "the layout gone of nowhere:LAYOUT fails: ModuleNotFoundError: No module named 'nowhere'; repair or"),
        ("text", "flat:__name__ is not an ExportLayout"),
        ("none", "no installed package has the layout none; install it here, and where Spark runs tasks"),
    ):
        with pytest.raises(UsageError, match=message):
            layouts[name]


def test_a_zip_of_the_package_has_its_layouts(tmp_path: Path) -> None:
    """As on executors that were given ``--py-files``, without any metadata of this package."""
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in (ROOT / "compaction").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT))
    program = (
        "import importlib.metadata as metadata\nmetadata.distributions = lambda **_: ()\n"
        "from compaction.exports import LAYOUTS, __file__ as file\n"
        "assert 'package.zip' in file, file\n"
        "print(*LAYOUTS, *(LAYOUTS[name].reader.__name__ for name in LAYOUTS))"
    )
    call, environment = [sys.executable, "-c", program], {"PYTHONPATH": "package.zip"}
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*sorted(OWN), "AivenReader", "BackupReader", "LocalTieredReader"]


#: a layout whose parts end the process in the name of success, each by its name
QUITTING = """
from compaction.names import TopicPartition
from compaction.exports import ExportLayout
from compaction.files.filesystem import FileRange
from compaction.exports import LogFile, StoredLog, StoredSegment

class Part:
    size = mtime_ns = 1
    def __init__(self, where, at):
        self.where, self.path = where, "x"
        self.quit(at)
    def quit(self, at):
        if at == self.where:
            raise SystemExit(0)
    def logs(self):
        self.quit("logs")
        return [TopicPartition("orders", 0)]
    def stored(self, log):
        self.quit("stored")
        return StoredLog((StoredSegment("x", 0, 1, {".log": LogFile(1, 1, self.load)}),))
    def load(self):
        self.quit("load")
    def write(self, log_dir, now_ms):
        self.quit("write")

def layout(where):
    return ExportLayout(where, lambda place: Part(where, "reader"), lambda options: Part(where, "target"))

for where in ("reader", "logs", "stored", "load", "target", "write"):
    globals()[where] = layout(where)
"""


@pytest.fixture
def other_package(tmp_path: Path) -> Path:
    """A package with layouts that end the process, and one with malformed entry points."""
    (tmp_path / "quitting.py").write_text(QUITTING)
    (tmp_path / "quits_at_import.py").write_text("raise SystemExit(0)")
    places = ("reader", "logs", "stored", "load", "target", "write")
    install(tmp_path, {"import": "quits_at_import:LAYOUT", **{where: f"quitting:{where}" for where in places}})
    broken = tmp_path / "broken-1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (broken / "entry_points.txt").write_text(f"[{GROUP}]\nno entry point\n")
    return tmp_path


def result(packages: Path, *calls: list[str]) -> tuple[list[int], str, str]:
    """The exit codes of commands, run in one process that has these packages, and its output."""
    program = (
        "import json, sys\nfrom compaction.cli.console import main\n"
        "codes = []\nfor sys.argv[1:] in json.loads(sys.argv[1]):\n    codes.append(main())\n"
        "print(json.dumps(codes), file=sys.stderr)\n"
    )
    call = [sys.executable, "-c", program, json.dumps(calls)]
    done = subprocess.run(
        call, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stderr.splitlines()[-1]), done.stdout, done.stderr


def test_a_plug_in_that_ends_the_process_is_an_error_of_the_command(other_package: Path, tmp_path: Path) -> None:
    """The command ended with exit code 0 and had written nothing."""
    copy = ["compact", "--output-dir", f"{tmp_path}/copy", "--set", "cleanup.policy=compact"]
    at = [[*copy, "--log-dir", f"{name}+file://{tmp_path}"] for name in ("import", "reader", "logs", "stored", "load")]
    log_dir = tmp_path / "logs"
    (log_dir / "orders-0").mkdir(parents=True)
    (log_dir / "orders-0" / f"{0:020d}.log").write_bytes(b"")
    at += [[*copy, "--log-dir", str(log_dir), "--output-layout", name] for name in ("target", "write")]
    codes, _, errors = result(other_package, *at)
    assert 0 not in codes, (codes, errors)
    assert "the layout import of quits_at_import:LAYOUT fails: SystemExit: 0; repair or reinstall" in errors
    assert not (tmp_path / "copy").exists()


def test_malformed_entry_points_of_another_package_break_no_command(other_package: Path, tmp_path: Path) -> None:
    (tmp_path / "logs" / "orders-0").mkdir(parents=True)
    (tmp_path / "logs" / "orders-0" / f"{0:020d}.log").write_bytes(data_batch(0))
    calls = [["count", "--log-dir", f"{tmp_path}/logs"], ["completion", "bash"], ["compact", "--help-all"]]
    codes, printed, errors = result(other_package, *calls)
    assert codes == [0, 0, 0], errors
    assert "orders" in printed and "aiven,backup,local-tiered" in printed


def test_a_layout_that_was_not_found_may_be_in_a_package_with_malformed_entry_points(
    other_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(other_package))
    with pytest.raises(UsageError, match="no installed package has the layout flat; the entry points of broken are malformed"):
        Layouts()["flat"]


@pytest.mark.parametrize("name", ["$(touch x)", "`x`", "a b", "Flat", "-flat", "fl'at", "flat;x", "flät"])
def test_a_name_that_is_code_in_a_shell_is_no_layout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script that ``completion`` prints is evaluated by shells."""
    monkeypatch.syspath_prepend(str(tmp_path))
    layouts = install(tmp_path, {name: "flat:LAYOUT", "flat-2": "flat:LAYOUT"})
    assert "flat-2" in layouts and name not in layouts
    assert list(layouts) == sorted(OWN)
    assert completion.main(["bash"]) == 0
    script = capsys.readouterr().out
    assert all(shell_text not in script for shell_text in (name, "flat-2"))
