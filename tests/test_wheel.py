"""The packages have the right files and metadata, and the wheel's commands work in an environment without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.golden import unpack_sample
from tests.kafka.jars import spark_home
from tools.licences import licence, needed
from tools.release import compact_by_each_engine

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
def packages(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Path:
    """A directory with the source distribution of this checkout, and the wheel that is built from it."""
    for tool in ("build", "twine"):
        if find_spec(f"{tool}.__main__") is None:
            missing(f"{tool} (`make suites` installs it)")
    place = tmp_path_factory.mktemp("packages")
    call(sys.executable, "-m", "build", "--outdir", place, ROOT, cwd=place, PROJECT_URL="https://git.example.org/cleaner/")
    return place


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    """The wheel of this checkout."""
    (made,) = packages.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of commands of an environment with the wheel, which uses the libraries of this one."""
    place = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "venv", place / "env", cwd=place)
    python = place / "env/bin/python"
    call(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=place)
    (packages,) = (place / "env/lib").glob("*/site-packages")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries))
    return python.parent


def test_the_wheel_has_only_modules_types_and_settings(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    code = {name for name in names if ".dist-info/" not in name}
    expected = {
        str(Path(name, path.relative_to(ROOT / part)))
        for part, name in {"compaction": "compaction", "jobs": "compaction/jobs"}.items()
        for path in (ROOT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert code == expected | {"pyspark_kafka_log.py"}
    assert {"compaction/py.typed", "compaction/engines/log4j2.properties"} <= code
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_console_command_works_in_any_directory(installed: Path, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    where = call(installed / "python", "-c", "import compaction; print(compaction.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent))
    command = installed / "kafka-log-compaction"
    assert call(command, "--version", cwd=tmp_path).startswith("kafka-log-compaction ")
    told = call(command, "compact", "--log-dir", log_dir, "--topic", "orders", cwd=tmp_path)
    assert "3 logs: 3 cleaned" in told


def test_completion_and_the_data_source_come_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "--output-dir" in call(installed / "kafka-log-compaction", "completion", "bash", cwd=tmp_path)
    finds = "import pyspark_kafka_log as found; print(found.DefaultSource.name(), found.__file__)"
    name, file = call(installed / "python", "-c", finds, cwd=tmp_path).split()
    assert name == "kafka_log"
    assert file.startswith(str(installed.parent))


def test_the_source_distribution_has_what_the_checkout_has(packages: Path) -> None:
    with tarfile.open(next(packages.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = call("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    assert set(tracked) - names <= {".editorconfig"}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "conf/project_urls.py"} <= names


def test_twine_accepts_both(packages: Path) -> None:
    files = sorted(packages.iterdir())
    assert len(files) == 2
    told = call(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=packages, NO_COLOR="1", COLUMNS="300")
    assert told.count("PASSED") == 2


def test_addresses_are_those_of_one_variable(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    urls = dict(each.split(", ") for each in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert urls["Issues"] == "https://git.example.org/cleaner/issues"
    assert all(url.startswith("https://git.example.org/cleaner") for url in urls.values())


def test_an_installation_takes_no_other_name_than_the_packages(installed: Path, tmp_path: Path) -> None:
    """Another package ``jobs`` is imported by its own application, and not by the commands."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/__init__.py").write_text("MINE = True")
    (tmp_path / "jobs/__main__.py").write_text("raise SystemExit('another package')")
    python = installed / "python"
    assert call(python, "-c", "import compaction.jobs.compact, jobs; print(jobs.MINE)", cwd=tmp_path) == "True\n"
    assert call(python, "-m", "compaction", "--version", cwd=tmp_path).startswith("kafka-log-compaction ")
    # the modules that a job ships to a cluster
    shipped = "import sys; from compaction.engines.spark_session import write_package; write_package(sys.argv[1])"
    call(python, "-c", shipped, "shipped.zip", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    names = zipfile.ZipFile(tmp_path / "shipped.zip").namelist()
    assert "compaction/jobs/compact.py" in names
    assert {name.partition("/")[0] for name in names} == {"compaction"}


def test_an_installation_leaves_the_same_bytes_by_each_engine(
    installed: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    """As ``make release`` tries both packages, with all that they need installed anew."""
    if find_spec("grpc") is None:
        missing("grpcio (`make suites` installs it)")
    assert set(compact_by_each_engine(installed, tmp_path)) == {"local", "spark", "connect"}


def test_spark_submit_runs_an_installed_application(installed: Path, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    where = "import importlib.util as u; print(u.find_spec('compaction.jobs.compact').origin)"
    script = call(installed / "python", "-c", where, cwd=tmp_path).strip()
    told = call(
        spark_home() / "bin/spark-submit", "--master", "local[2]", script, "--log-dir", log_dir, "--topic", "orders",
        cwd=tmp_path, PYSPARK_PYTHON=str(installed / "python"),
    )  # fmt: skip
    assert "3 logs: 3 cleaned" in told


def test_every_package_that_the_wheel_needs_states_its_licence() -> None:
    """All that are declared, and what these need."""
    found = {name: licence(package) for name, package in needed("kafka-log-compaction", frozenset(["connect"])).items()}
    assert {"pyspark", "py4j", "numba", "llvmlite", "grpcio"} <= set(found)
    assert [name for name, text in found.items() if text == "not stated"] == []
