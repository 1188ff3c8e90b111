"""The wheel has the right files, and its console command works in an environment without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.golden import unpack_sample

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


def call(*command: str | Path, cwd: Path, **env: str) -> str:
    """Runs a command outside of the checkout; returns its standard output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**kept, **env}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    place = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT, cwd=place)
    (made,) = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of commands of an environment with the wheel, which uses the libraries of this one."""
    place = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "venv", place / "env", cwd=place)
    python = place / "env/bin/python"
    call(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=place)
    (packages,) = (place / "env/lib").glob("*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_wheel_has_only_modules_types_and_settings(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    code = {name for name in names if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT))
        for part in ("compaction", "jobs")
        for path in (ROOT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert code == expected
    assert {"compaction/py.typed", "compaction/spark/log4j2.properties"} <= code
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_console_command_works_in_any_directory(installed: Path, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    where = call(installed / "python", "-c", "import compaction; print(compaction.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent))
    command = installed / "kafka-log-compaction"
    assert call(command, "--version", cwd=tmp_path).startswith("kafka-log-compaction ")
    told = call(command, "compact", "--log-dir", log_dir, "--topic", "orders", cwd=tmp_path)
    assert "3 logs: 3 cleaned" in told
