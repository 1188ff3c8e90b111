"""The configuration that a real broker stored in the sample's metadata log is seen, each value with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.config.request import CompactionRequest
from compaction.config.resolver import TOPIC_ATTRIBUTES, Resolver, TopicConfig
from compaction.config.sources import Origin, Setting, Source, TomlSettings, read_properties, read_sets
from compaction.errors import CorruptLogError
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import parse_properties
from compaction.log.discover import Selector, discover
from compaction.log.settings import Settings, read_settings
from tests.golden import unpack_sample
from tests.golden.make_sample import CLEANED, LATER, SOON, TOPICS

#: the settings that matter to a log at rest
SETTINGS = ("cleanup.policy", *TOPIC_ATTRIBUTES)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_sample(tmp_path_factory.mktemp("sample"))


def request(logs: Path, resolver: Resolver | None = None) -> CompactionRequest:
    return CompactionRequest((str(logs),), (), 0, resolver=resolver or Resolver())


def configs(logs: Path, resolver: Resolver | None = None) -> dict[str, TopicConfig]:
    """The settings in effect, by topic."""
    fs = LocalFileSystem()
    locations = discover(fs, [str(logs)], Selector())
    found = read_settings(fs, locations, request(logs, resolver))
    return {
        location.topic_partition.topic: settings.topic
        for location, settings in zip(locations, found, strict=True)
        if isinstance(settings, Settings)
    }


def effective(config: TopicConfig, name: str) -> object:
    value = config.cleanup_policy if name == "cleanup.policy" else getattr(config, name.replace(".", "_"))
    return str(value)


def test_every_topic_has_the_settings_of_its_creation(logs: Path) -> None:
    found = configs(logs)
    assert set(TOPICS) | {CLEANED, "__consumer_offsets", "__transaction_state"} == set(found)
    for topic, (_, given) in TOPICS.items():
        # what the sample needed while it was written was set again
        given = {**given, **LATER} if given.items() >= SOON.items() else given
        stored = {name: value for name, value in given.items() if name in SETTINGS}
        for name, value in stored.items():
            assert effective(found[topic], name) == value, (topic, name)
            assert found[topic].source(name).origin is Origin.METADATA, (topic, name)
        others = {found[topic].source(name).origin for name in SETTINGS if name not in stored}
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


def damaged(logs: Path, at: float) -> list[Settings | CorruptLogError | object]:
    """The settings of all logs, a byte of the metadata log changed at such a share of its length."""
    log = min((logs / "__cluster_metadata-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[int(len(data) * at)] ^= 0xFF
    log.write_bytes(data)
    fs = LocalFileSystem()
    return list(read_settings(fs, discover(fs, [str(logs)], Selector()), request(logs)))


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_damaged_metadata_log_fails_every_log_of_its_directory(tmp_path: Path, at: float) -> None:
    found = damaged(unpack_sample(tmp_path), at)
    assert len(found) > 10
    assert {type(each) for each in found} == {CorruptLogError}
    assert "__cluster_metadata-0" in str(found[0])


def test_a_metadata_log_with_a_torn_tail_is_read_up_to_it(tmp_path: Path) -> None:
    logs = unpack_sample(tmp_path)
    log = min((logs / "__cluster_metadata-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-5])
    assert configs(logs)["clickstream"].retention_ms == 172_800_000
