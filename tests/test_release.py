"""A release: one version everywhere, files of other versions with the outcome that the changelog states, packages with the
right files and metadata, and a wheel whose commands work in an environment without a checkout."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.certifier import certificate, erasure_certificate
from compaction.errors import CompactionError, CorruptLogError, UsageError
from compaction.files import manifest
from compaction.output import journal
from compaction.output.finished import FINISHED
from compaction.policies import comparison, result
from compaction.report import SCHEMA_VERSION
from tests.golden import unpack_sample
from tests.kafka.jars import spark_home
from tests.processes import ROOT, output_of
from tools import release
from tools.licences import licence, needed

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
CALL: dict[str, Any] = {"topics": ["customers"], "as_of": 1_798_761_600_000}


def test_changelog_images_and_package_have_one_version() -> None:
    assert release.unready(compaction.__version__) == []
    assert "CHANGELOG.md has no section [0.0.1]" in release.unready("0.0.1")
    assert re.search(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)[1] == compaction.__version__  # type: ignore[index]


def test_the_table_of_formats_has_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", CHANGELOG, re.MULTILINE))
    schemas = {SCHEMA_VERSION, comparison.SCHEMA_VERSION, result.SCHEMA_VERSION, certificate.SCHEMA_VERSION}
    assert {f"`schema_version` {number}" for number in schemas} == {rows["reports of all commands"]}
    assert rows["`_manifest.json`, `_finished.json` of an output"] == str(manifest.FORMAT)
    assert rows["`_unfinished.json` of a store"] == str(manifest.FORMAT)
    assert rows["certificates of `erase`"] == f"`schema_version` {erasure_certificate.SCHEMA_VERSION}, with a seal"
    assert rows["`.compaction-swap`, the journal of a killed run in place"] == str(journal._VERSION)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A finished copy of a topic of the sample, which is beside it."""
    compaction.compact(unpack_sample(tmp_path, "customers"), output_dir=tmp_path / "copy", if_done="skip", **CALL)
    return tmp_path / "copy"


def of_format(number: int, document: dict[str, Any]) -> dict[str, Any]:
    """A record of an output, as a version with this format wrote it."""
    made = {**document, "format": number}
    if number == 4:
        made["sources"] = {path: {**log, "rules": None} for path, log in document["sources"].items()}
    for name, first in {"sources": 4, "request": 3, "run": 2, "place": 2, "checksum": 2}.items():
        if number < first:
            del made[name]
    if number == 1:
        made["files"] = [{name: value for name, value in file.items() if name != "xxh3_128"} for file in document["files"]]
    return made if number == 1 else {**made, "checksum": manifest._checksum(made)}


NEWER = "is not a manifest of format 1 to 5"
FULL = "the previous copy does not record the settings that it was made with"


@pytest.mark.parametrize(
    ("number", "since", "if_done"),
    [
        (6, UsageError(NEWER), CorruptLogError(NEWER)),
        (5, "", None),
        (4, FULL, None),
        (3, UsageError("does not record what was copied"), None),
        (2, UsageError("does not record what was copied"), UsageError("did not record its request")),
        (1, UsageError("does not record what was copied"), UsageError("did not record its request")),
    ],
)
def test_an_output_of_another_version(
    copy: Path, number: int, since: str | CompactionError, if_done: CompactionError | None
) -> None:
    record, source = copy / FINISHED, copy.parent / "kafka-logs"
    record.write_text(json.dumps(of_format(number, json.loads(record.read_text()))))

    def reasons() -> set[str]:
        call = {**CALL, "output_dir": copy.parent / "next", "since": copy}
        return {log["since_reason"] for log in compaction.compact(source, **call).to_dict()["logs"]}

    def repeated() -> None:
        compaction.compact(source, output_dir=copy, if_done="skip", **CALL)

    if isinstance(since, str):
        assert reasons() == {since}
    else:
        refused(reasons, since)
    if if_done is None:
        repeated()
    else:
        refused(repeated, if_done)


def refused(call: Callable[[], object], expected: CompactionError) -> None:
    with pytest.raises(type(expected), match=str(expected)):
        call()


def test_a_certificate_of_another_version(tmp_path: Path) -> None:
    log_dir, keys, file = unpack_sample(tmp_path, "customers"), tmp_path / "keys", tmp_path / "certificate.json"
    keys.write_text("customer-1\n")
    compaction.erase(log_dir, output_dir=tmp_path / "copy", keys=[keys], certificate=file, include_active=True, **CALL)
    written = json.loads(file.read_text())

    def verified(**changes: Any) -> Callable[[], object]:
        file.write_text(json.dumps({name: value for name, value in {**written, **changes}.items() if value is not None}))
        return lambda: compaction.verify(before=log_dir, after=tmp_path / "copy", certificate=file, keys=[keys])

    verified()()
    refused(verified(schema_version=2), UsageError("is not a certificate of an erasure"))
    refused(verified(seal=None), CompactionError("its seal does not match its fields"))


def call(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The standard output of a command that finds no checkout."""
    return output_of(command, cwd=cwd, without=("PYTHONPATH", "VIRTUAL_ENV"), **variables)


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


@pytest.mark.slow
def test_the_wheel_has_only_modules_types_and_settings_and_addresses_of_one_variable(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
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
    (name,) = (name for name in names if name.endswith("/METADATA"))
    addresses = Parser().parsestr(archive.read(name).decode()).get_all("Project-URL", [])
    urls = dict(each.split(", ") for each in addresses)
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert urls["Issues"] == "https://git.example.org/cleaner/issues"
    assert all(url.startswith("https://git.example.org/cleaner") for url in urls.values())


@pytest.mark.slow
def test_the_commands_and_the_data_source_of_the_wheel_work_in_any_directory(installed: Path, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    where = (
        "import compaction, pyspark_kafka_log as found; print(compaction.__file__, found.__file__, found.DefaultSource.name())"
    )
    package, source, name = call(installed / "python", "-c", where, cwd=tmp_path).split()
    assert all(each.startswith(str(installed.parent)) for each in (package, source)) and name == "kafka_log"
    command = installed / "kafka-log-compaction"
    assert call(command, "--version", cwd=tmp_path).startswith("kafka-log-compaction ")
    assert "--output-dir" in call(command, "completion", "bash", cwd=tmp_path)
    assert "3 logs: 3 cleaned" in call(command, "compact", "--log-dir", log_dir, "--topic", "orders", cwd=tmp_path)


@pytest.mark.slow
def test_the_source_distribution_has_what_the_checkout_has(packages: Path) -> None:
    with tarfile.open(next(packages.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = call("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    assert set(tracked) - names <= {".editorconfig"}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "conf/project_urls.py"} <= names


@pytest.mark.slow
def test_twine_accepts_both(packages: Path) -> None:
    files = sorted(packages.iterdir())
    assert len(files) == 2
    told = call(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=packages, NO_COLOR="1", COLUMNS="300")
    assert told.count("PASSED") == 2


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_installation_leaves_the_same_bytes_by_each_engine(
    installed: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    """As ``make release`` tries both packages, with all that they need installed anew."""
    if find_spec("grpc") is None:
        missing("grpcio (`make suites` installs it)")
    assert set(release.compact_by_each_engine(installed, tmp_path)) == {"local", "spark", "connect"}


@pytest.mark.slow
def test_spark_submit_runs_an_installed_application(installed: Path, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    where = "import importlib.util as u; print(u.find_spec('compaction.jobs.compact').origin)"
    script = call(installed / "python", "-c", where, cwd=tmp_path).strip()
    told = call(
        spark_home() / "bin/spark-submit", "--master", "local[2]", script, "--log-dir", log_dir, "--topic", "orders",
        cwd=tmp_path, PYSPARK_PYTHON=str(installed / "python"),
    )  # fmt: skip
    assert "3 logs: 3 cleaned" in told


@pytest.mark.slow
def test_every_package_that_the_wheel_needs_states_its_licence() -> None:
    """All that are declared, and what these need."""
    found = {name: licence(package) for name, package in needed("kafka-log-compaction", frozenset(["connect"])).items()}
    assert {"pyspark", "py4j", "numba", "llvmlite", "grpcio"} <= set(found)
    assert [name for name, text in found.items() if text == "not stated"] == []
