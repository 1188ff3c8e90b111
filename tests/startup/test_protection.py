"""The settings that keep other users out of a session, and what is said about sessions without them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.errors import UsageError
from compaction.startup import (
    AUTHENTICATE,
    LOCAL,
    LOCAL_MASTER,
    LOOPBACK,
    MASTER,
    UI,
    added,
    configured,
    exposures,
    in_effect,
    require_own_directory,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[4,2]"])
def test_a_local_session_is_closed_to_others(master: str) -> None:
    settings = {MASTER: master, **added(master)}
    assert settings[AUTHENTICATE] == "true"
    assert settings[UI] == "false"
    assert {settings["spark.driver.host"], settings["spark.driver.bindAddress"]} == {LOOPBACK}
    assert list(exposures(settings, None)) == []


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_a_cluster_has_its_own_secret_and_addresses(master: str) -> None:
    assert not set(added(master)) & set(LOCAL)
    assert added(master)["spark.executorEnv.PYTHONSAFEPATH"] == "1"
    (found,) = exposures({MASTER: master}, None)
    assert found.risk.startswith(f"{master} without authentication: ")
    assert list(exposures({MASTER: master, AUTHENTICATE: "true"}, None)) == []


def test_a_session_whose_user_switched_authentication_off_is_told_so() -> None:
    (found,) = exposures(in_effect({AUTHENTICATE: "false"}), None)
    assert found.risk.startswith("local[*] without authentication")


def test_pages_are_on_loopback_or_said_to_be_open() -> None:
    settings = in_effect({UI: "true"})
    assert list(exposures(settings, LOOPBACK)) == []
    (found,) = exposures(settings, None)
    assert found.remedy == "set SPARK_LOCAL_IP=127.0.0.1"
    assert settings["spark.ui.killEnabled"] == "false"


def test_the_settings_are_known_before_a_jvm_starts(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master   spark://file:7077\nspark.authenticate true\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    assert configured(environment) == {MASTER: "spark://file:7077", AUTHENTICATE: "true"}
    submit = {**environment, "PYSPARK_SUBMIT_ARGS": "--master=yarn --conf spark.ui.enabled=true -c a=b=c pyspark-shell"}
    assert configured(submit) == {MASTER: "yarn", AUTHENTICATE: "true", UI: "true", "a": "b=c"}
    (tmp_path / "own.conf").write_text("spark.master local[3]\n")
    own = {**environment, "PYSPARK_SUBMIT_ARGS": f"--properties-file {tmp_path / 'own.conf'} pyspark-shell"}
    assert configured(own) == {MASTER: "local[3]"}
    assert configured({"SPARK_CONF_DIR": str(tmp_path / "none")}) == {}
    assert in_effect({})[AUTHENTICATE] == "true"
    assert LOCAL_MASTER == "local[*]"


def test_python_3_10_does_not_start_workers_where_others_can_plant_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_own_directory((3, 10))
    tmp_path.chmod(0o777)
    require_own_directory((3, 11))
    with pytest.raises(UsageError, match="written by others, and Python 3.10 would run modules .*; change to a directory"):
        require_own_directory((3, 10))


def lists(package: str) -> Iterator[tuple[Path, list[str]]]:
    """The constants in each list of the modules of a package."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.List | ast.Tuple):
                yield file, [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]


@pytest.mark.parametrize("package", ["compaction", "jobs"])
def test_no_process_is_started_with_a_module_by_name(package: str) -> None:
    assert [file for file, words in lists(package) if "-m" in words] == []
