"""The tree beside the code: the check of prerequisites, make, pins, seeds, the example configuration, the console command."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction import __version__
from compaction.cli import console
from compaction.cli.parser import APPLICATIONS, Parser
from compaction.commands import compact
from compaction.config.resolver import Resolver
from compaction.config.sources import DEFAULT, read_toml
from compaction.engines.spark_session import C1_ONLY, DEFAULTS
from tests.processes import ROOT, started

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


#: programs on the path, which imitate the real ones; ``HERE`` is their directory
PYTHON = f'exec "{sys.executable}" "$@"'
BARE_PYTHON = 'case "$2" in *executable*) echo HERE/bare ;; *) exit 1 ;; esac'
NO_PYTHON, NO_JAVA = "missing: Python 3.10 or newer.*", "missing: Java 17 or newer.*"


def java(version: str) -> str:
    """Prints its version among its settings, on standard error."""
    return f"echo '    java.specification.version = {version}' >&2"


def old_java(shown: str) -> str:
    return rf".*is Java {shown}, Spark 4 needs 17 or newer.*"


@pytest.mark.parametrize(
    ("programs", "given", "told"),
    [
        *(({"python3": PYTHON, "java": java(version)}, "", []) for version in ("17", "21", "25")),
        ({"python3.13": "echo 'command not found' >&2; exit 127", "python3": PYTHON, "java": java("17")}, "", []),
        ({}, "", [NO_PYTHON, f"{NO_JAVA}: install one.*"]),
        ({"python3": PYTHON}, "python", []),
        ({"python3": PYTHON}, "java", [NO_JAVA]),
        ({"python3": "exit 0", "java": java("17")}, "", [NO_PYTHON]),
        ({"bare": BARE_PYTHON, "java": java("17")}, "PYTHON=HERE/bare", [".*HERE/bare lacks the venv module.*"]),
        ({"python3": PYTHON, "java": java("17")}, "PYTHON=/nowhere/python", [".*PYTHON=/nowhere/python.*"]),
        ({"python3": PYTHON, "java": java("1.8")}, "", [old_java("8")]),
        *(({"python3": PYTHON, "java": java(version)}, "", [old_java(version)]) for version in ("11", "16")),
        (
            {"python3": PYTHON, "java": java("17"), "jdk-11/bin/java": java("11")}, "JAVA_HOME=HERE/jdk-11",
            [".*JAVA_HOME=HERE/jdk-11 is Java 11.*"],
        ),
        (
            {"python3": PYTHON, "java": java("17")}, "JAVA_HOME=/nowhere",
            [".*JAVA_HOME=/nowhere has no working bin/java.*"],
        ),
    ],
)  # fmt: skip
def test_prerequisites_are_found_or_each_missing_one_is_a_line(
    programs: dict[str, str], given: str, told: list[str], tmp_path: Path
) -> None:
    """``given`` is a variable or an argument. The path also has the tools that every machine has."""
    for tool in ("sed", "sh"):
        found = next(Path(each, tool) for each in os.environ["PATH"].split(os.pathsep) if Path(each, tool).exists())
        (tmp_path / tool).symlink_to(found)
    for name, script in programs.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script.replace('HERE', str(tmp_path))}\n")
        program.chmod(0o755)
    variable, assigned, value = given.replace("HERE", str(tmp_path)).partition("=")
    arguments = [] if assigned or not given else [given]
    # no variable of this machine
    variables: dict[str, Any] = {"PATH": str(tmp_path), **({variable: value} if assigned else {})}
    done = started([".ci/prerequisites", *arguments], without=("",), **variables)
    assert done.returncode == (1 if told else 0)
    lines = done.stderr.splitlines()
    assert len(lines) == len(told), lines
    for line, expected in zip(lines, told, strict=True):
        assert re.fullmatch(expected.replace("HERE", re.escape(str(tmp_path))), line), line
    assert given != "java" or done.stdout == ""
    if not told:
        assert Path(done.stdout.strip()).samefile(sys.executable)


@pytest.mark.parametrize("code", [0, 1, 2, 5])
def test_a_step_is_framed_and_keeps_its_exit_code_even_when_no_test_was_found(code: int) -> None:
    done = started([".ci/step", "check", "sh", "-c", f"echo two words; exit {code}"])
    assert done.returncode == code
    frame = r"check: ok \(\d+ s, \d+ s of processor time\)" if code == 0 else f"check: FAILED with exit code {code}.*"
    assert re.fullmatch(rf"==> check\ntwo words\n(==> {frame}\n)?", done.stdout) and re.search(frame, done.stdout + done.stderr)


def test_make_lists_its_targets_and_two_of_them_run_every_test() -> None:
    listed = re.findall(r"^ +make ([a-z-]+) +\S", started(["make"], without=("MAKE",)).stdout, re.MULTILINE)
    assert listed == ["help", "install", "run", "test", "test-all", "search", "lint", "bench", "docs", "release", "clean"]
    (more,) = re.findall(r"^MORE := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    markers = {marker.split(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert markers - set(more.split(" or ")) == {"spark", "kafka"}


def test_each_dependency_has_one_exact_version_for_each_python() -> None:
    ranges: dict[str, list[str]] = {}
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.strip() and not line.startswith("#")]
    for pin in pins:
        found = re.fullmatch(r'([\w.-]+)==[\w.]+(?:; (python_version (?:<|>=) "3\.\d+"))?', pin)
        assert found, pin
        ranges.setdefault(normal(found[1]), []).append(found[2] or "")
    for name, markers in ranges.items():
        assert sorted(markers) in ([""], ['python_version < "3.11"', 'python_version >= "3.11"']), name
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
    asked = {normal(re.split(r"[\[<>=;~! ]", requirement)[0]) for group in groups for requirement in group}
    assert asked - set(ranges) == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml", "Makefile"])
def test_what_installs_names_no_address(name: str) -> None:
    assert "://" not in (ROOT / name).read_text()


def test_manifests_have_options_of_the_command() -> None:
    known = {option for action in Parser(compact.OPTIONS)._actions for option in action.option_strings}
    manifests = list((ROOT / "conf/kubernetes").glob("*.yaml"))
    assert manifests
    for manifest in manifests:
        called = re.findall(r"^.*--(?:log-dir|output-dir|set|dry-run)\b.*$", manifest.read_text(), re.MULTILINE)
        assert called, manifest
        assert set(re.findall(r"--[a-z][a-z-]+", "\n".join(called))) <= known


def documents(kind: str) -> list[str]:
    """Those of a kind in the manifest of the nightly job."""
    texts = (ROOT / "conf/kubernetes/cron-job.yaml").read_text().split("\n---\n")
    return [text for text in texts if re.search(rf"^kind: {kind}$", text, re.MULTILINE)]


def test_the_role_of_the_nightly_job_changes_only_the_objects_that_it_replaces() -> None:
    (role,), (objects,) = documents("Role"), documents("ConfigMap")
    rules = re.split(r"^  - ", role, flags=re.MULTILINE)[1:]
    named = [re.search(r"resourceNames: \[(.*)\]", rule) for rule in rules]
    for rule, name in zip(rules, named, strict=True):
        assert (name is None) == ("verbs: [create]" in rule), rule
    made = re.findall(r"^    metadata:\n      name: (.*)$", objects, re.MULTILINE)
    assert sorted(name[1] for name in named if name) == sorted(made)


def test_jobs_have_no_privileges_and_a_retried_run_accepts_the_output_of_the_first_try() -> None:
    snapshot, run = documents("CronJob")
    for job in (snapshot, run):
        for setting in ("runAsNonRoot: true", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [ALL]"):
            assert job.count(setting) == job.count("image: ") == 1, setting
    assert "automountServiceAccountToken: false" in run and "serviceAccountName" not in run
    assert "backoffLimit: 2" in run and re.search(r"--output-dir .* --if-done skip", run)
    assert 'spark.authenticate: "true"' in (ROOT / "conf/kubernetes/spark-application.yaml").read_text()


def test_the_example_configuration_has_kafkas_defaults_for_the_broker_and_topics_that_do_what_its_comments_say() -> None:
    toml = read_toml((ROOT / "conf/compaction.toml").read_text(), "conf/compaction.toml")
    resolver = Resolver(tomls=(toml,))
    told, untold = resolver.topic("any"), Resolver().topic("any")
    assert toml.broker != ()
    for name, source in told.sources.items():
        attribute = name.replace(".", "_")
        if source != DEFAULT and name != "cleanup.policy":
            assert getattr(told, attribute) == getattr(untold, attribute), name
    assert (told.cleanup_compact, told.cleanup_delete) == (untold.cleanup_compact, untold.cleanup_delete)
    assert resolver.broker().load_factor == Resolver().broker().load_factor
    addresses, views = resolver.topic("customer.addresses"), resolver.topic("page-views")
    assert (addresses.cleanup_compact, addresses.cleanup_delete) == (True, False)
    assert (addresses.min_cleanable_dirty_ratio, addresses.min_compaction_lag_ms) == (0.0, 3_600_000)
    assert (views.cleanup_compact, views.cleanup_delete, views.retention_ms) == (True, True, 30 * 86_400_000)


def test_the_spark_settings_agree_with_what_a_session_sets_itself() -> None:
    lines = (ROOT / "conf/spark-defaults.conf").read_text().splitlines()
    found = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert {name: found.get(name) for name in DEFAULTS} == dict(DEFAULTS)
    java = "spark.driver.extraJavaOptions"
    assert found[java].strip() == C1_ONLY
    assert set(found) - set(DEFAULTS) == {"spark.master", "spark.driver.memory", java}
    # each core has these for every partition: eight cores with 200 partitions of 1 MiB do not fit into the heap of 1 GiB
    assert not [name for name in DEFAULTS if name.endswith(("file.buffer", "file.output.buffer", "diskWriteBufferSize"))]


def test_the_console_command_names_every_command_and_refuses_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["--help"]) == 0
    assert re.findall(r"^  ([a-z-]+)  ", capsys.readouterr().out, re.MULTILINE) == list(console.COMMANDS)
    assert set(APPLICATIONS) == {path.stem for path in (ROOT / "jobs").glob("[a-z]*.py")}
    assert console.main([]) == 2
    assert "usage: kafka-log-compaction COMMAND" in capsys.readouterr().err
    assert console.main(["clean"]) == 2
    known = ", ".join(console.COMMANDS)
    assert capsys.readouterr().err == f"kafka-log-compaction: no command 'clean'; choose one of: {known}\n"


def test_the_package_installs_the_console_command() -> None:
    module, function = PROJECT["project"]["scripts"]["kafka-log-compaction"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
    for package in ("compaction", "jobs"):
        assert started([sys.executable, "-m", package, "--version"]).stdout == f"kafka-log-compaction {__version__}\n"


def test_each_generator_of_numbers_has_a_seed() -> None:
    """Ruff forbids functions without one."""
    without = []
    for module in (ROOT / "tests").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call) and not node.args]
        made = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
        without += [str(module)] if made & {"Random", "default_rng"} else []
    assert without == []


def test_hypothesis_tries_the_same_examples_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after other tests, which have imported other modules: their constants would be among the examples."""
    drawn: list[tuple[int, bytes]] = []

    @given(st.integers(), st.binary())
    @settings(max_examples=300)
    def collect(number: int, data: bytes) -> None:
        drawn.append((number, data))

    collect()
    first = [*drawn]
    drawn.clear()
    other = ModuleType("other_module")
    other.__file__ = str(tmp_path / "other_module.py")
    (tmp_path / "other_module.py").write_text(f"NUMBERS = {[10**9 + number for number in range(1000)]}")
    monkeypatch.setitem(sys.modules, "other_module", other)
    collect()
    assert drawn == first
    assert len(set(first)) > 100
    assert settings.default is not None
    # none is too slow on a busy machine
    assert (settings.default.deadline, settings.default.derandomize, settings.default.print_blob) == (None, True, True)
