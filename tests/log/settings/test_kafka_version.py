"""The version whose rules apply: the given one, that of the log's cluster, or the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.config.sources import read_properties, read_sets
from compaction.errors import ConfigError
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import parse_properties
from compaction.log.discover import Selector, discover
from compaction.log.settings import UNKNOWN, VERSION_OPTION, KafkaVersion, Settings, kafka_version, read_settings
from compaction.rules.kafka_rules import NEWEST
from tests.formats.test_metadata_log import feature
from tests.golden import unpack_sample
from tests.log.settings.guesses import empty_logs, stored, write_metadata

DAY_MS = 86_400_000


def properties(text: str) -> Resolver:
    """The configuration of a broker's ``server.properties``."""
    return Resolver(properties=read_properties(parse_properties(text, "server.properties"), "server.properties"))


def settings_in(log_dir: Path, resolver: Resolver | None = None, version: str | None = None) -> list[Settings]:
    fs = LocalFileSystem()
    locations = discover(fs, [str(log_dir)], Selector())
    request = CompactionRequest((str(log_dir),), locations, 0, resolver=resolver or Resolver(), kafka_version=version)
    return [each for each in read_settings(fs, locations, request) if isinstance(each, Settings)]


@pytest.mark.parametrize(
    ("level", "version"),
    [
        (1, "3.0"), (3, "3.2"), (4, "3.3"), (7, "3.3"), (8, "3.4"), (11, "3.5"), (14, "3.6"), (19, "3.7"), (20, "3.8"),
        (21, "3.9"), (22, "4.0"), (25, "4.0"), (27, "4.1"), (29, "4.2"), (30, "4.3"), (31, "4.4"), (33, "4.4"),
    ],
)  # fmt: skip
def test_the_metadata_version_decides(level: int, version: str) -> None:
    found = kafka_version(None, {"metadata.version": level}, " /meta", properties("inter.broker.protocol.version=2.8"))
    assert found == KafkaVersion(version, f"metadata.version {level} of the metadata log /meta")


def test_a_newer_metadata_version_is_taken_for_the_newest() -> None:
    found = kafka_version(None, {"metadata.version": 99}, "", Resolver())
    assert (found.version, found.source) == (NEWEST, "metadata.version 99 of the metadata log, which is newer")


@pytest.mark.parametrize(
    ("text", "version", "note"),
    [
        ("3.9", "3.9", ""), ("3.3-IV3", "3.3", ""), ("2.8.2", "2.8", ""), ("2.3-IV1", "2.8", ", which is older"),
        ("0.10.2-IV0", "2.8", ", which is older"), ("4.9", NEWEST, ", which is newer"),
    ],
)  # fmt: skip
def test_else_the_protocol_version_of_the_brokers_decides(text: str, version: str, note: str) -> None:
    found = kafka_version(None, {"metadata.version": 0}, "", properties(f"inter.broker.protocol.version={text}"))
    assert found.version == version
    assert found.source == f"{text} of server.properties line 1 (inter.broker.protocol.version){note}"


def test_a_protocol_version_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"IV0 of --set inter\.broker.* is not a version"):
        kafka_version(None, {}, "", Resolver(read_sets(["inter.broker.protocol.version=IV0"])))


def test_the_given_version_overrides_all_others() -> None:
    assert kafka_version("3.9.1", {"metadata.version": 33}, "", Resolver()) == KafkaVersion("3.9.1", VERSION_OPTION)


def test_without_any_source_the_newest_rules_apply(tmp_path: Path) -> None:
    empty_logs(tmp_path, "orders-0")
    assert [each.kafka for each in settings_in(tmp_path)] == [KafkaVersion(NEWEST, UNKNOWN)]


def test_the_feature_level_is_read_from_the_metadata_log(tmp_path: Path) -> None:
    empty_logs(tmp_path, "orders-0")
    write_metadata(tmp_path, [feature("metadata.version", 7), *stored("orders"), feature("metadata.version", 21)])
    assert [each.kafka.version for each in settings_in(tmp_path)] == ["3.9"]


def test_the_sample_was_written_by_kafka_4_3(tmp_path: Path) -> None:
    assert {each.kafka.version for each in settings_in(unpack_sample(tmp_path))} == {"4.3"}


@pytest.mark.parametrize(
    ("version", "given", "expiration_ms"),
    [
        ("3.3", "", 7 * DAY_MS),
        ("3.3", "transactional.id.expiration.ms=5\nproducer.id.expiration.ms=6", 5),
        ("3.4", "", DAY_MS),
        ("4.4", "transactional.id.expiration.ms=5\nproducer.id.expiration.ms=6", 6),
    ],
)
def test_producers_expire_as_in_that_version(tmp_path: Path, version: str, given: str, expiration_ms: int) -> None:
    empty_logs(tmp_path, "orders-0")
    found = settings_in(tmp_path, properties(given), version)
    assert [each.broker.producer_id_expiration_ms for each in found] == [expiration_ms]


def test_a_set_that_the_clusters_version_does_not_have_is_refused(tmp_path: Path) -> None:
    empty_logs(tmp_path, "orders-0")
    write_metadata(tmp_path, [feature("metadata.version", 21), *stored("orders")])
    with pytest.raises(ConfigError, match=r"Kafka 3\.9 has no configuration remote\.copy\.lag\.ms, which is since 4\.4"):
        settings_in(tmp_path, Resolver(read_sets(["remote.copy.lag.ms=1"])))


def test_a_set_of_any_version_is_accepted_if_the_version_is_unknown(tmp_path: Path) -> None:
    empty_logs(tmp_path, "orders-0")
    sets = read_sets(["message.timestamp.difference.max.ms=1", "remote.copy.lag.ms=1"])
    assert len(settings_in(tmp_path, Resolver(sets))) == 1
