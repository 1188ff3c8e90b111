"""Layouts of exports are found without their package's metadata, and other packages add their own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compaction.errors import UsageError
from compaction.exports import LAYOUTS as OWN
from compaction.storage.export_layout import GROUP, LAYOUTS, ExportLayout, _Layouts

ROOT = Path(__file__).parents[2]


def install(directory: Path, entries: dict[str, str]) -> _Layouts:
    """The metadata of a package with these entry points; returns the layouts that are found with it."""
    package = directory / "other-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (package / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(lines)}")
    return _Layouts()


def test_the_layouts_of_this_package_are_found() -> None:
    assert list(LAYOUTS) == sorted(OWN)
    assert all(isinstance(layout, ExportLayout) for layout in LAYOUTS.values())


def test_another_package_adds_a_layout_but_does_not_replace_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "flat.py").write_text(
        "from compaction.storage.export_layout import ExportLayout\nLAYOUT = ExportLayout('flat files', None, None)\n"
    )
    entries = {"flat": "flat:LAYOUT", "aiven": "flat:LAYOUT", "gone": "nowhere:LAYOUT", "text": "flat:__name__"}
    layouts = install(tmp_path, entries)
    assert list(layouts) == ["aiven", "backup", "flat", "gone", "local-tiered", "text"]
    assert layouts["flat"].title == "flat files"
    assert layouts["aiven"] is LAYOUTS["aiven"]
    for name, message in (
        ("gone", "the layout gone cannot be imported: No module named 'nowhere'; reinstall the package that has nowhere:"),
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
        "import importlib.metadata as metadata\nmetadata.entry_points = lambda **_: ()\n"
        "from compaction.storage.export_layout import LAYOUTS, __file__ as file\n"
        "assert 'package.zip' in file, file\n"
        "print(*LAYOUTS, *(layout.reader.__name__ for layout in LAYOUTS.values()))"
    )
    call, environment = [sys.executable, "-c", program], {"PYTHONPATH": "package.zip"}
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*sorted(OWN), "AivenReader", "BackupReader", "LocalTieredReader"]
