"""The helpers themselves: Spark resolves Kafka's class path, or says why not, and Kafka reads the encoded batches."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.kafka import jars
from tests.kafka.encode import CODECS, Batch, Legacy, Record
from tests.kafka.gateway import Gateway
from tests.kafka.jars import REFERENCE, JarsUnavailableError, kafka_classpath, require_kafka_classpath
from tests.kafka.log import KafkaLog, Opening
from tests.kafka.reader import kafka_records

pytestmark = pytest.mark.kafka

NO_COORDINATE = "not-a-coordinate"
T = 1_700_000_000_000
NOW = Opening(T + 2_592_000_000, {"cleanup.policy": "compact"})


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


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_reads_back_every_field_of_an_encoded_v2_batch(gateway: Gateway, tmp_path: Path, codec: str) -> None:
    headers = ((b"h", b"1"), (b"null", None), (b"empty", b""))
    made = [Record(7, T, b"k", b"v" * 70_000, headers), Record(9, T + 5, b"", b""), Record(12, T - 5, None, None)]
    with KafkaLog(gateway, tmp_path / "t-0", NOW) as log:
        log.append(Batch(made, codec, base_offset=5, last_offset=14).encode())
        assert log.end_offset == 15
    assert kafka_records(gateway, tmp_path / "t-0" / f"{0:020d}.log") == made


@pytest.mark.parametrize(("magic", "codec"), list(itertools.product((0, 1), ("none", "gzip", "snappy", "lz4"))))
def test_kafka_reads_back_encoded_message_sets(gateway: Gateway, tmp_path: Path, magic: int, codec: str) -> None:
    made = [Record(3, T, b"k", b"v" * 70_000), Record(4, T + 9, b"", b""), Record(8, T + 5, None, None)]
    with KafkaLog(gateway, tmp_path / "t-0", NOW) as log:
        log.append(Legacy(made, magic, codec).encode())
        assert log.end_offset == 9
    found = kafka_records(gateway, tmp_path / "t-0" / f"{0:020d}.log")
    assert found == [one._replace(timestamp=one.timestamp if magic else -1) for one in made]
