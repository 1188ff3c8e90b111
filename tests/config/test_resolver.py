"""Precedence of the sources of a setting; each effective value names its source. When a topic's cleanup.policy is known."""

from __future__ import annotations

from dataclasses import fields

import pytest

from compaction.config.entries import HOUR_MS
from compaction.config.resolver import TOPIC_ATTRIBUTES, BrokerConfig, Resolver, TopicConfig
from compaction.config.sources import Origin, Policy, read_properties, read_sets, read_toml
from compaction.errors import ConfigError
from compaction.formats.java_text import parse_properties


def resolver(
    *,
    sets: tuple[str, ...] = (),
    tomls: tuple[str, ...] = (),
    properties: str | None = None,
    metadata: dict[str, dict[str, str]] | None = None,
    dynamic: dict[str, str] | None = None,
) -> Resolver:
    server = None if properties is None else read_properties(parse_properties(properties, "s.properties"), "s.properties")
    return Resolver(
        sets=read_sets(sets),
        tomls=tuple(read_toml(text, f"{number}.toml") for number, text in enumerate(tomls)),
        properties=server,
        metadata=metadata or {},
        metadata_broker=dynamic or {},
    )


def test_without_any_source_everything_is_kafkas_default() -> None:
    assert Resolver().topic("orders") == TopicConfig()
    assert Resolver().broker() == BrokerConfig()
    assert str(TopicConfig().source("segment.bytes")) == "Kafka's default"


def test_every_attribute_is_the_value_of_an_entry() -> None:
    others = {"cleanup_compact", "cleanup_delete", "sources", "policy_guess"}
    assert {each.name for each in fields(TopicConfig)} == {*TOPIC_ATTRIBUTES.values(), *others}


#: sources of min.cleanable.dirty.ratio from the lowest to the highest precedence, each with its value
LADDER: list[tuple[dict[str, object], float, str]] = [
    ({}, 0.5, "Kafka's default"),
    ({"properties": "log.cleaner.min.cleanable.ratio=0.1"}, 0.1,
     "s.properties line 1 (log.cleaner.min.cleanable.ratio)"),
    ({"dynamic": {"log.cleaner.min.cleanable.ratio": "0.15"}}, 0.15, "the broker's configuration in the metadata log"),
    ({"tomls": ("[broker]\nlog.cleaner.min.cleanable.ratio=0.2",)}, 0.2, "0.toml line 2 (log.cleaner.min.cleanable.ratio)"),
    ({"metadata": {"orders": {"min.cleanable.dirty.ratio": "0.3"}}}, 0.3, "the topic's configuration in the metadata log"),
    ({"tomls": ("[broker]\nlog.cleaner.min.cleanable.ratio=0.2\n[topics.orders]\nmin.cleanable.dirty.ratio=0.4",)}, 0.4,
     "0.toml line 4 (min.cleanable.dirty.ratio)"),
    ({"sets": ("log.cleaner.min.cleanable.ratio=0.6",)}, 0.6, "--set log.cleaner.min.cleanable.ratio"),
    ({"sets": ("min.cleanable.dirty.ratio=0.7", "log.cleaner.min.cleanable.ratio=0.6")}, 0.7,
     "--set min.cleanable.dirty.ratio"),
]  # fmt: skip


@pytest.mark.parametrize("rung", range(len(LADDER)), ids=[source for _, _, source in LADDER])
def test_the_strongest_source_wins_and_is_known(rung: int) -> None:
    given: dict[str, object] = {}
    for each, _, _ in LADDER[: rung + 1]:
        given |= each
    config = resolver(**given).topic("orders")  # type: ignore[arg-type]
    assert config.min_cleanable_dirty_ratio == LADDER[rung][1]
    assert str(config.source("min.cleanable.dirty.ratio")) == LADDER[rung][2]


def test_a_topics_own_settings_do_not_affect_other_topics() -> None:
    found = resolver(tomls=('[topics."a"]\nsegment.bytes=2097152',), metadata={"b": {"segment.bytes": "3145728"}})
    assert [found.topic(name).segment_bytes for name in ("a", "b", "c")] == [2_097_152, 3_145_728, 1 << 30]


@pytest.mark.parametrize(
    ("properties", "retention_ms", "key"),
    [
        ("log.retention.hours=2", 2 * HOUR_MS, "log.retention.hours"),
        ("log.retention.hours=2\nlog.retention.minutes=30", 30 * 60_000, "log.retention.minutes"),
        ("log.retention.minutes=30\nlog.retention.ms=5\nlog.retention.hours=2", 5, "log.retention.ms"),
        ("log.retention.ms=-1", -1, "log.retention.ms"),
        ("log.retention.minutes=-7", -1, "log.retention.minutes"),
        ("log.retention.hours=-1", -1, "log.retention.hours"),
    ],
)
def test_retention_in_the_finest_unit_wins_and_any_negative_value_is_unlimited(
    properties: str, retention_ms: int, key: str
) -> None:
    config = resolver(properties=properties).topic("orders")
    assert (config.retention_ms, config.source("retention.ms").key) == (retention_ms, key)


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("log.segment.bytes", "2097152", "segment_bytes", 2_097_152),
        ("log.index.size.max.bytes", "4096", "segment_index_bytes", 4096),
        ("log.index.interval.bytes", "1", "index_interval_bytes", 1),
        ("log.cleaner.delete.retention.ms", "9", "delete_retention_ms", 9),
        ("log.cleaner.min.compaction.lag.ms", "9", "min_compaction_lag_ms", 9),
        ("log.cleaner.max.compaction.lag.ms", "9", "max_compaction_lag_ms", 9),
        ("log.segment.delete.delay.ms", "9", "file_delete_delay_ms", 9),
        ("log.retention.bytes", "9", "retention_bytes", 9),
        ("log.cleanup.policy", "compact,delete", "cleanup_policy", "compact,delete"),
        ("log.cleanup.policy", "", "cleanup_policy", ""),
    ],
)
def test_a_brokers_setting_is_the_default_of_its_topics(name: str, text: str, attribute: str, value: object) -> None:
    for given in (resolver(properties=f"{name}={text}"), resolver(sets=(f"{name}={text}",))):
        assert getattr(given.topic("orders"), attribute) == value


@pytest.mark.parametrize(
    ("topic", "policy", "segment_key"),
    [
        ("__consumer_offsets", "compact", "offsets.topic.segment.bytes"),
        ("__transaction_state", "compact", "transaction.state.log.segment.bytes"),
        ("__share_group_state", "delete", "share.coordinator.state.topic.segment.bytes"),
    ],
)
def test_internal_topics_have_the_configuration_that_a_broker_creates_them_with(
    topic: str, policy: str, segment_key: str
) -> None:
    server = "log.cleanup.policy=compact,delete\nlog.segment.bytes=2097152\n"
    config = resolver(properties=server).topic(topic)
    assert (config.cleanup_policy, config.segment_bytes) == (policy, 100 << 20)
    assert str(config.source("cleanup.policy")) == "Kafka's own configuration of this internal topic"
    config = resolver(properties=f"{server}{segment_key}=3145728\n").topic(topic)
    assert config.segment_bytes == 3_145_728
    assert str(config.source("segment.bytes")) == f"s.properties line 3 ({segment_key})"


def test_the_metadata_log_overrides_the_configuration_of_an_internal_topic() -> None:
    metadata = {"__consumer_offsets": {"cleanup.policy": "compact,delete"}}
    config = resolver(metadata=metadata, properties="log.segment.bytes=2097152").topic("__consumer_offsets")
    assert (config.cleanup_policy, config.segment_bytes) == ("compact,delete", 2_097_152)


def test_internal_topics_without_a_retention_time_ignore_the_brokers() -> None:
    for topic in ("__share_group_state", "__remote_log_metadata"):
        assert resolver(properties="log.retention.ms=1").topic(topic).retention_ms == -1


def test_a_later_file_and_a_later_set_win() -> None:
    found = resolver(
        sets=("segment.bytes=2097152", "segment.bytes=3145728"),
        tomls=("[broker]\nlog.retention.ms=5", "[broker]\nlog.retention.ms=6"),
    )
    assert (found.topic("orders").segment_bytes, found.topic("orders").retention_ms) == (3_145_728, 6)


def test_the_internal_segment_size_overrides_the_public_one() -> None:
    config = resolver(sets=("segment.bytes=2097152", "internal.segment.bytes=100")).topic("orders")
    assert config.segment_bytes == 100


def test_names_of_other_versions_in_the_metadata_log_are_ignored() -> None:
    metadata = {"orders": {"message.format.version": "2.8", "cleanup.policy": "compact"}}
    assert resolver(metadata=metadata).topic("orders").cleanup_compact


def test_a_bad_value_in_the_metadata_log_fails_only_that_topic() -> None:
    found = resolver(metadata={"orders": {"segment.bytes": "1"}})
    with pytest.raises(ConfigError, match=r"^topic orders, metadata log: segment\.bytes = '1' is less than 14"):
        found.topic("orders")
    assert found.topic("other") == TopicConfig()


def test_a_min_lag_over_the_max_lag_is_refused_with_both_sources() -> None:
    found = resolver(sets=("min.compaction.lag.ms=10",), properties="log.cleaner.max.compaction.lag.ms=9")
    with pytest.raises(ConfigError) as error:
        found.topic("orders")
    assert str(error.value) == (
        "topic orders: min.compaction.lag.ms is 10 (--set min.compaction.lag.ms), which is more than max.compaction.lag.ms 9 "
        "(s.properties line 1 (log.cleaner.max.compaction.lag.ms)); lower the first or raise the second"
    )


def test_broker_settings_are_resolved_by_the_same_rule() -> None:
    found = resolver(
        sets=("log.cleaner.io.buffer.load.factor=0.75",),
        properties="log.cleaner.dedupe.buffer.size=4194304\nproducer.id.expiration.ms=5",
    ).broker()
    assert (found.load_factor, found.dedupe_buffer_bytes, found.producer_id_expiration_ms) == (0.75, 4 << 20, 5)
    assert str(found.source("log.cleaner.io.buffer.load.factor")) == "--set log.cleaner.io.buffer.load.factor"


def test_an_offset_map_of_at_most_one_mebibyte_per_thread_is_refused() -> None:
    given = ("log.cleaner.dedupe.buffer.size=2097152", "log.cleaner.threads=2")
    with pytest.raises(ConfigError, match=r"it must be more than 1048576 bytes per thread"):
        resolver(sets=given).broker()
    assert resolver(sets=given[:1]).broker().dedupe_buffer_bytes == 2 << 20


def test_another_log_directory_has_another_metadata_log() -> None:
    found = resolver(metadata={"orders": {"retention.bytes": "5"}}, sets=("delete.retention.ms=1",))
    other = found.with_metadata({"orders": {"retention.bytes": "6"}}, {"log.retention.ms": "7"})
    assert (other.topic("orders").retention_bytes, other.topic("orders").delete_retention_ms) == (6, 1)
    assert (other.topic("orders").retention_ms, found.topic("orders").retention_ms) == (7, 7 * 24 * HOUR_MS)


Metadata = dict[str, dict[str, str]]


#: a metadata log with the topic, which has no policy of its own, and one with other topics only
KNOWN: Metadata = {"orders": {"segment.ms": "5"}}
OTHERS: Metadata = {"sales": {"cleanup.policy": "compact"}}
NONE: Metadata = {}


@pytest.mark.parametrize("metadata", [NONE, OTHERS], ids=["no metadata log", "a metadata log without the topic"])
def test_a_brokers_default_does_not_speak_for_a_topic_that_no_metadata_log_knows(metadata: Metadata) -> None:
    for given in (
        resolver(metadata=metadata),
        resolver(metadata=metadata, properties=""),
        resolver(metadata=metadata, properties="log.cleanup.policy=delete"),
        resolver(metadata=metadata, tomls=('[broker]\nlog.cleanup.policy = "compact,delete"',)),
        resolver(metadata=metadata, dynamic={"log.cleanup.policy": "delete"}),
    ):
        assert str(given.topic("orders").policy_guess).startswith("cleanup.policy is unknown: ")


def test_a_topic_without_a_policy_of_its_own_is_not_deleted_while_server_properties_are_unknown() -> None:
    guess = resolver(metadata=KNOWN).topic("orders").policy_guess
    assert guess == (
        "cleanup.policy is unknown: the topic has none of its own, and the broker's default may be set in its "
        "server.properties; give that file by --config, or the policy by --set cleanup.policy=... or --assume-default-policy"
    )


@pytest.mark.parametrize(
    ("given", "policy", "origin"),
    [
        (resolver(metadata=KNOWN, properties="num.partitions=3"), "delete", Origin.DEFAULT),
        (resolver(metadata=KNOWN, properties=""), "delete", Origin.DEFAULT),
        (resolver(metadata=KNOWN, properties="log.cleanup.policy=compact"), "compact", Origin.PROPERTIES),
        (resolver(metadata=KNOWN, dynamic={"log.cleanup.policy": "compact,delete"}), "compact,delete", Origin.METADATA_BROKER),
        (resolver(metadata=KNOWN, tomls=('[broker]\nlog.cleanup.policy = "compact"',)), "compact", Origin.TOML_BROKER),
        (resolver(metadata={"orders": {"cleanup.policy": "compact"}}), "compact", Origin.METADATA),
    ],
)
def test_a_topic_that_the_metadata_log_knows_has_the_brokers_default(given: Resolver, policy: str, origin: Origin) -> None:
    config = given.topic("orders")
    assert (config.cleanup_policy, config.source("cleanup.policy").origin, config.policy_guess) == (policy, origin, None)


@pytest.mark.parametrize(
    "given",
    [
        Resolver(read_sets(["cleanup.policy=delete"])),
        Resolver(read_sets(["log.cleanup.policy=delete"])),
        Resolver().with_policy(Policy.read("cleanup.policy=delete").settings),
        Resolver(tomls=(read_toml('[topics."orders"]\ncleanup.policy = "delete"', "t.toml"),)),
    ],
    ids=["--set", "--set of the broker's name", "--policy", "a topic's TOML table"],
)
def test_who_speaks_of_the_topic_itself_is_believed_without_a_metadata_log(given: Resolver) -> None:
    assert given.topic("orders").policy_guess is None


def test_another_setting_of_the_topic_does_not_say_its_policy() -> None:
    assert Resolver(read_sets(["retention.ms=5"])).topic("orders").policy_guess is not None
    assert Resolver().with_policy(Policy.read("retention.ms=5").settings).topic("orders").policy_guess is not None


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata"])
def test_internal_topics_have_the_policy_that_a_broker_creates_them_with(topic: str) -> None:
    assert Resolver().topic(topic).policy_guess is None


@pytest.mark.parametrize(
    ("given", "policy", "source"),
    [
        (resolver(metadata=NONE), "delete", "Kafka's default, assumed by --assume-default-policy"),
        (resolver(metadata=KNOWN), "delete", "Kafka's default, assumed by --assume-default-policy"),
        (
            resolver(metadata=NONE, properties="log.cleanup.policy=compact"),
            "compact",
            "s.properties line 1 (log.cleanup.policy), assumed by --assume-default-policy",
        ),
        (resolver(metadata=KNOWN, properties=""), "delete", "Kafka's default"),
    ],
)
def test_a_default_is_assumed_only_with_the_option_and_only_for_an_unknown_policy(
    given: Resolver, policy: str, source: str
) -> None:
    assumed = Resolver(tomls=given.tomls, properties=given.properties, metadata=given.metadata, assume_default_policy=True)
    config = assumed.topic("orders")
    assert (config.cleanup_policy, str(config.source("cleanup.policy")), config.policy_guess) == (policy, source, None)
