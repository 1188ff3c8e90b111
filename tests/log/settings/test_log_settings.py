"""The configuration that a real broker stored in the sample's metadata log, each value with its source; and the version whose
rules apply: the given one, that of the log's cluster, or the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.config.resolver import TOPIC_ATTRIBUTES, Resolver, TopicConfig
from compaction.config.sources import Origin, Setting, Source, TomlSettings, read_properties, read_sets
from compaction.errors import ConfigError
from compaction.formats.java_text import parse_properties
from compaction.log.settings import UNKNOWN, VERSION_OPTION, KafkaVersion, Settings, kafka_version
from compaction.rules.kafka_rules import NEWEST
from tests.formats.test_metadata_log import feature
from tests.golden import unpack_sample
from tests.golden.make_sample import CLEANED, LATER, SOON, TOPICS
from tests.log.settings.guesses import empty_logs, known, settings_of, stored, write_metadata

DAY_MS = 86_400_000
#: the settings that matter to a log at rest
SETTINGS = ("cleanup.policy", *TOPIC_ATTRIBUTES)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_sample(tmp_path_factory.mktemp("sample"))


def configs(logs: Path, resolver: Resolver | None = None) -> dict[str, TopicConfig]:
    """The settings in effect, by topic."""
    found = settings_of(logs, resolver=resolver)
    return {name.partition("/")[2].rpartition("-")[0]: known(each).topic for name, each in found.items()}


def effective(config: TopicConfig, name: str) -> object:
    value = config.cleanup_policy if name == "cleanup.policy" else getattr(config, name.replace(".", "_"))
    return str(value)


def test_every_topic_has_the_settings_of_its_creation(logs: Path) -> None:
    found = configs(logs)
    assert set(TOPICS) | {CLEANED, "__consumer_offsets", "__transaction_state"} == set(found)
    for topic, (_, given) in TOPICS.items():
        # what the sample needed while it was written was set again
        given = {**given, **LATER} if given.items() >= SOON.items() else given
        own = {name: value for name, value in given.items() if name in SETTINGS}
        for name, value in own.items():
            assert effective(found[topic], name) == value, (topic, name)
            assert found[topic].source(name).origin is Origin.METADATA, (topic, name)
        others = {found[topic].source(name).origin for name in SETTINGS if name not in own}
        assert others == {Origin.DEFAULT}, topic


def test_a_changed_setting_has_its_last_value(logs: Path) -> None:
    cleaned = configs(logs)[CLEANED]
    assert (cleaned.min_cleanable_dirty_ratio, str(cleaned.source("min.cleanable.dirty.ratio"))) == (
        0.5,
        "the topic's configuration in the metadata log",
    )


def test_internal_topics_have_the_settings_of_their_creation(logs: Path) -> None:
    offsets = configs(logs)["__consumer_offsets"]
    assert (offsets.cleanup_policy, offsets.segment_bytes) == ("compact", 100 << 20)
    assert offsets.source("cleanup.policy").origin is Origin.METADATA


def toml(topic: str | None, name: str, text: str) -> Resolver:
    origin = Origin.TOML_TOPIC if topic else Origin.TOML_BROKER
    setting = (Setting(name, int(text), Source(origin, name, "x.toml", 3)),)
    return Resolver(tomls=(TomlSettings(topics={topic: setting}) if topic else TomlSettings(broker=setting),))


def properties(text: str) -> Resolver:
    return Resolver(properties=read_properties(parse_properties(text, "server.properties"), "server.properties"))


@pytest.mark.parametrize(
    ("resolver", "value", "source"),
    [
        (Resolver(read_sets(["retention.ms=7"])), 7, "--set retention.ms"),
        (Resolver(read_sets(["log.retention.hours=2"])), 7_200_000, "--set log.retention.hours"),
        (toml("clickstream", "retention.ms", "8"), 8, "x.toml line 3 (retention.ms)"),
        (toml(None, "log.retention.ms", "9"), 172_800_000, "the topic's configuration in the metadata log"),
        (properties("log.retention.ms=9"), 172_800_000, "the topic's configuration in the metadata log"),
    ],
)
def test_stored_topic_settings_have_their_precedence_among_the_sources(
    logs: Path, resolver: Resolver, value: int, source: str
) -> None:
    clicks = configs(logs, resolver)["clickstream"]
    assert (clicks.retention_ms, str(clicks.source("retention.ms"))) == (value, source)


def test_settings_that_are_not_stored_come_from_the_brokers_properties(logs: Path) -> None:
    orders = configs(logs, properties("num.partitions=7\nlog.cleaner.min.cleanable.ratio=0.25\n"))["orders"]
    assert (orders.min_cleanable_dirty_ratio, str(orders.source("min.cleanable.dirty.ratio"))) == (
        0.25,
        "server.properties line 2 (log.cleaner.min.cleanable.ratio)",
    )


def test_without_a_metadata_log_only_options_apply(logs: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    (bare / "orders-0").mkdir(parents=True)
    (bare / "__consumer_offsets-0").mkdir()
    found = configs(bare)
    assert (found["orders"].cleanup_policy, found["orders"].source("cleanup.policy").origin) == ("delete", Origin.DEFAULT)
    assert found["__consumer_offsets"].cleanup_policy == "compact"
    assert found["__consumer_offsets"].source("cleanup.policy").origin is Origin.INTERNAL
    assert "no metadata log is in the directories of this call" in str(found["orders"].policy_guess)
    assert found["__consumer_offsets"].policy_guess is None


def test_a_metadata_log_with_a_torn_tail_is_read_up_to_it(tmp_path: Path) -> None:
    logs = unpack_sample(tmp_path)
    log = min((logs / "__cluster_metadata-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-5])
    assert configs(logs)["clickstream"].retention_ms == 172_800_000


def settings_in(log_dir: Path, resolver: Resolver | None = None, version: str | None = None) -> list[Settings]:
    return [known(each) for each in settings_of(log_dir, resolver=resolver, version=version).values()]


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
