"""Spark resolves Kafka's class path, or says why not."""

from __future__ import annotations

import os

import pytest

from tests.kafka import jars
from tests.kafka.jars import REFERENCE, JarsUnavailableError, kafka_classpath, require_kafka_classpath

pytestmark = pytest.mark.kafka

NO_COORDINATE = "not-a-coordinate"


def test_the_class_path_has_kafka_scala_the_gateway_and_one_logging_facade() -> None:
    names = [os.path.basename(jar) for jar in require_kafka_classpath().split(os.pathsep)]  # noqa: PTH119
    kafkas = f"kafka_2.13-{REFERENCE}", f"kafka-storage-{REFERENCE}", "kafka-clients-"
    for part in (*kafkas, "scala-library-", "py4j-", "slf4j-api-2"):
        assert sum(part in name for name in names) == 1, part
    assert not [name for name in names if "slf4j-api-1" in name]


@pytest.mark.slow
def test_jars_that_spark_cannot_resolve_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_PAUSE_S", 0)
    with pytest.raises(JarsUnavailableError, match=NO_COORDINATE):
        kafka_classpath(NO_COORDINATE)


@pytest.mark.parametrize(("ci", "outcome"), [("true", JarsUnavailableError), ("", pytest.skip.Exception)])
def test_a_test_without_its_jars_is_skipped_but_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    def unavailable(*coordinates: str, version: str) -> str:
        raise JarsUnavailableError(f"{coordinates[0]} of {version}")

    monkeypatch.setattr(jars, "kafka_classpath", unavailable)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome):
        require_kafka_classpath(NO_COORDINATE)
