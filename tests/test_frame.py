"""The frame of the project: the check of prerequisites, make, the pins, the example configuration, the console command."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compaction import __version__
from compaction.cli import console
from compaction.cli.parser import APPLICATIONS
from compaction.config.resolver import Resolver
from compaction.config.sources import DEFAULT, read_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(*command: str | Path, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the checkout; with ``path``, it finds only the basic tools and the programs in ``path``."""
    base = {"PATH": os.environ["PATH"] if path is None else str(path), "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, env={**base, **env}, capture_output=True, text=True, check=False, timeout=60
    )


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
    done = run(".ci/prerequisites", *arguments, path=tmp_path, **({variable: value} if assigned else {}))
    assert done.returncode == (1 if told else 0)
    lines = done.stderr.splitlines()
    assert len(lines) == len(told), lines
    for line, expected in zip(lines, told, strict=True):
        assert re.fullmatch(expected.replace("HERE", re.escape(str(tmp_path))), line), line
    assert given != "java" or done.stdout == ""
    if not told:
        assert Path(done.stdout.strip()).samefile(sys.executable)


class TestStep:
    @pytest.mark.parametrize("code", [1, 2, 5])
    def test_a_failure_keeps_its_exit_code_even_when_no_test_was_found(self, code: int) -> None:
        done = run(".ci/step", "check", "sh", "-c", f"exit {code}")
        assert done.returncode == code
        assert f"check: FAILED with exit code {code}" in done.stderr

    def test_success_is_framed_by_two_lines(self) -> None:
        done = run(".ci/step", "check", "echo", "two words")
        assert done.returncode == 0
        assert re.fullmatch(r"==> check\ntwo words\n==> check: ok \(\d+ s, \d+ s of processor time\)\n", done.stdout)


class TestMake:
    def test_make_without_a_target_lists_the_targets(self) -> None:
        done = run("make")
        listed = re.findall(r"^ +make ([a-z-]+) +\S", done.stdout, re.MULTILINE)
        assert listed == ["help", "install", "run", "test", "test-all", "search", "lint", "bench", "docs", "release", "clean"]

    def test_every_test_is_run_by_one_of_two_targets(self) -> None:
        more = re.search(r"^MORE := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert more is not None
        markers = {marker.split(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
        assert markers - set(more[1].split(" or ")) == {"spark", "kafka"}


class TestPins:
    PINS = tuple(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.strip() and not line.startswith("#")
    )

    @staticmethod
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    def test_each_is_one_exact_version_for_one_range_of_pythons(self) -> None:
        for pin in self.PINS:
            assert re.fullmatch(r"[\w.-]+==[\w.]+(; python_version (<|>=) \"3\.\d+\")?", pin), pin

    def test_every_dependency_is_pinned(self) -> None:
        project = PROJECT["project"]
        groups = [*project["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
        asked = [*project["dependencies"], *(each for group in groups for each in group)]
        names = {self.normal(re.split(r"[\[<>=;~! ]", requirement)[0]) for requirement in asked}
        assert names - {self.normal(pin.split("==")[0]) for pin in self.PINS} == set()

    def test_a_pin_for_newer_pythons_has_a_counterpart_for_older_ones(self) -> None:
        ranges: dict[str, list[str]] = {}
        for pin in self.PINS:
            version, _, marker = pin.partition("; ")
            ranges.setdefault(version.split("==")[0], []).append(marker)
        for name, markers in ranges.items():
            assert sorted(markers) in ([""], ['python_version < "3.11"', 'python_version >= "3.11"']), name

    def test_the_constraints_name_no_address(self) -> None:
        for name in ("constraints.txt", "pyproject.toml", "Makefile"):
            assert "://" not in (ROOT / name).read_text(), name


class TestManifests:
    def test_their_commands_have_the_options_of_the_command(self) -> None:
        from compaction.cli.parser import Parser
        from compaction.commands.compact import OPTIONS

        known = {option for action in Parser(OPTIONS)._actions for option in action.option_strings}
        manifests = list((ROOT / "conf/kubernetes").glob("*.yaml"))
        assert manifests
        for manifest in manifests:
            text = manifest.read_text()
            called = [line for line in text.splitlines() if re.search(r"--(log-dir|output-dir|set|dry-run)\b", line)]
            assert called, manifest
            assert set(re.findall(r"--[a-z][a-z-]+", "\n".join(called))) <= known

    CRON_JOB = (ROOT / "conf/kubernetes/cron-job.yaml").read_text().split("\n---\n")

    def documents(self, kind: str) -> list[str]:
        return [text for text in self.CRON_JOB if re.search(rf"^kind: {kind}$", text, re.MULTILINE)]

    def test_the_role_changes_only_the_objects_that_the_job_replaces(self) -> None:
        (role,), (objects,) = self.documents("Role"), self.documents("ConfigMap")
        rules = re.split(r"^  - ", role, flags=re.MULTILINE)[1:]
        named = [re.search(r"resourceNames: \[(.*)\]", rule) for rule in rules]
        for rule, name in zip(rules, named, strict=True):
            assert (name is None) == ("verbs: [create]" in rule), rule
        made = re.findall(r"^    metadata:\n      name: (.*)$", objects, re.MULTILINE)
        assert sorted(name[1] for name in named if name) == sorted(made)

    def test_containers_have_no_privileges_and_a_run_has_no_token(self) -> None:
        snapshot, compaction = self.documents("CronJob")
        for job in (snapshot, compaction):
            for setting in ("runAsNonRoot", "readOnlyRootFilesystem"):
                assert job.count(f"{setting}: true") == job.count("image: ") == 1
            assert job.count("allowPrivilegeEscalation: false") == job.count("drop: [ALL]") == 1
        assert "automountServiceAccountToken: false" in compaction
        assert "serviceAccountName" not in compaction

    def test_a_retried_run_accepts_the_output_of_the_first_try(self) -> None:
        (_, compaction) = self.documents("CronJob")
        assert "backoffLimit: 2" in compaction
        assert re.search(r"--output-dir .* --if-done skip", compaction)

    def test_executors_authenticate(self) -> None:
        text = (ROOT / "conf/kubernetes/spark-application.yaml").read_text()
        assert 'spark.authenticate: "true"' in text

    def test_the_base_of_the_image_can_be_pinned(self) -> None:
        lines = (ROOT / "Dockerfile").read_text().splitlines()
        assert [line for line in lines if line.startswith(("ARG", "FROM"))] == [
            "ARG BASE=debian:12-slim", "FROM ${BASE} AS build", "FROM ${BASE}",
        ]  # fmt: skip


class TestExampleConfiguration:
    TOML = read_toml((ROOT / "conf/compaction.toml").read_text(), "conf/compaction.toml")

    def test_the_example_has_kafkas_defaults_for_the_broker(self) -> None:
        told = Resolver(tomls=(self.TOML,)).topic("any")
        untold = Resolver().topic("any")
        assert self.TOML.broker != ()
        for name, source in told.sources.items():
            attribute = name.replace(".", "_")
            if source != DEFAULT and name != "cleanup.policy":
                assert getattr(told, attribute) == getattr(untold, attribute), name
        assert (told.cleanup_compact, told.cleanup_delete) == (untold.cleanup_compact, untold.cleanup_delete)
        assert Resolver(tomls=(self.TOML,)).broker().load_factor == Resolver().broker().load_factor

    def test_the_examples_topics_do_what_their_comments_say(self) -> None:
        resolver = Resolver(tomls=(self.TOML,))
        addresses, views = resolver.topic("customer.addresses"), resolver.topic("page-views")
        assert (addresses.cleanup_compact, addresses.cleanup_delete) == (True, False)
        assert addresses.min_cleanable_dirty_ratio == 0.0
        assert addresses.min_compaction_lag_ms == 3_600_000
        assert (views.cleanup_compact, views.cleanup_delete) == (True, True)
        assert views.retention_ms == 30 * 86_400_000


def test_the_spark_settings_agree_with_what_a_session_sets_itself() -> None:
    from compaction.engines.spark_session import C1_ONLY, DEFAULTS

    lines = (ROOT / "conf/spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert {name: settings.get(name) for name in DEFAULTS} == dict(DEFAULTS)
    java = "spark.driver.extraJavaOptions"
    assert settings[java].strip() == C1_ONLY
    assert set(settings) - set(DEFAULTS) == {"spark.master", "spark.driver.memory", java}


class TestConsoleCommand:
    def test_help_names_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert console.main(["--help"]) == 0
        told = capsys.readouterr().out
        assert re.findall(r"^  ([a-z-]+)  ", told, re.MULTILINE) == list(console.COMMANDS)
        assert set(APPLICATIONS) == {path.stem for path in (ROOT / "jobs").glob("[a-z]*.py")}

    def test_a_call_without_a_command_is_wrong(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert console.main([]) == 2
        assert "usage: kafka-log-compaction COMMAND" in capsys.readouterr().err

    def test_an_unknown_command_is_told_in_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert console.main(["clean"]) == 2
        known = ", ".join(console.COMMANDS)
        assert capsys.readouterr().err == f"kafka-log-compaction: no command 'clean'; choose one of: {known}\n"

    def test_the_package_installs_the_console_command(self) -> None:
        module, function = PROJECT["project"]["scripts"]["kafka-log-compaction"].split(":")
        assert callable(getattr(importlib.import_module(module), function))
        for package in ("compaction", "jobs"):
            assert run(sys.executable, "-m", package, "--version").stdout == f"kafka-log-compaction {__version__}\n"
