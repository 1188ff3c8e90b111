"""When a topic's cleanup.policy is known, and when it is a guess."""

from __future__ import annotations

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import Origin, Policy, read_properties, read_sets, read_toml
from compaction.formats.java_text import parse_properties

Metadata = dict[str, dict[str, str]]
#: a metadata log with the topic, which has no policy of its own, and one with other topics only
KNOWN: Metadata = {"orders": {"segment.ms": "5"}}
OTHERS: Metadata = {"sales": {"cleanup.policy": "compact"}}
NONE: Metadata = {}


def resolver(metadata: Metadata, *, properties: str | None = None, toml: str = "", broker: str | None = None) -> Resolver:
    given = None if properties is None else read_properties(parse_properties(properties, "s.properties"), "s.properties")
    dynamic = {} if broker is None else {"log.cleanup.policy": broker}
    return Resolver(tomls=(read_toml(toml, "t.toml"),), properties=given).with_metadata(metadata, dynamic)


@pytest.mark.parametrize("metadata", [NONE, OTHERS], ids=["no metadata log", "a metadata log without the topic"])
def test_a_brokers_default_does_not_speak_for_a_topic_that_no_metadata_log_knows(metadata: Metadata) -> None:
    for given in (
        resolver(metadata),
        resolver(metadata, properties=""),
        resolver(metadata, properties="log.cleanup.policy=delete"),
        resolver(metadata, toml='[broker]\nlog.cleanup.policy = "compact,delete"'),
        resolver(metadata, broker="delete"),
    ):
        assert str(given.topic("orders").policy_guess).startswith("cleanup.policy is unknown: ")


def test_a_topic_without_a_policy_of_its_own_is_not_deleted_while_server_properties_are_unknown() -> None:
    guess = resolver(KNOWN).topic("orders").policy_guess
    assert guess == (
        "cleanup.policy is unknown: the topic has none of its own, and the broker's default may be set in its "
        "server.properties; give that file by --config, or the policy by --set cleanup.policy=... or --assume-default-policy"
    )


@pytest.mark.parametrize(
    ("given", "policy", "origin"),
    [
        (resolver(KNOWN, properties="num.partitions=3"), "delete", Origin.DEFAULT),
        (resolver(KNOWN, properties=""), "delete", Origin.DEFAULT),
        (resolver(KNOWN, properties="log.cleanup.policy=compact"), "compact", Origin.PROPERTIES),
        (resolver(KNOWN, broker="compact,delete"), "compact,delete", Origin.METADATA_BROKER),
        (resolver(KNOWN, toml='[broker]\nlog.cleanup.policy = "compact"'), "compact", Origin.TOML_BROKER),
        (resolver({"orders": {"cleanup.policy": "compact"}}), "compact", Origin.METADATA),
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
        (resolver(NONE), "delete", "Kafka's default, assumed by --assume-default-policy"),
        (resolver(KNOWN), "delete", "Kafka's default, assumed by --assume-default-policy"),
        (
            resolver(NONE, properties="log.cleanup.policy=compact"),
            "compact",
            "s.properties line 1 (log.cleanup.policy), assumed by --assume-default-policy",
        ),
        (resolver(KNOWN, properties=""), "delete", "Kafka's default"),
    ],
)
def test_a_default_is_assumed_only_with_the_option_and_only_for_an_unknown_policy(
    given: Resolver, policy: str, source: str
) -> None:
    assumed = Resolver(tomls=given.tomls, properties=given.properties, metadata=given.metadata, assume_default_policy=True)
    config = assumed.topic("orders")
    assert (config.cleanup_policy, str(config.source("cleanup.policy")), config.policy_guess) == (policy, source, None)
