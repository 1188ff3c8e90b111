"""The settings of each log and the version whose rules apply, each with its source; and which metadata log speaks for which
directory: never that of another cluster, never an older one, never a damaged one.

A metadata log is read whole or not at all: what is missing must not pass for a setting that was never stored.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import Origin, Setting, read_properties, read_sets
from compaction.errors import ConfigError, CorruptLogError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.formats.checkpoints import topic_id_text
from compaction.formats.java_text import parse_properties
from compaction.log.metadata_logs import MetadataLog, Position
from compaction.log.settings import UNKNOWN, VERSION_OPTION, KafkaVersion, Settings, kafka_version
from compaction.rules.kafka_rules import NEWEST
from tests.formats.test_metadata_log import config, feature, removal, topic
from tests.kafka.encode import Batch, Record
from tests.log.logs import iter_batches
from tests.log.settings.guesses import (
    CLUSTER,
    METADATA,
    empty_logs,
    identify,
    jbod,
    known,
    policies,
    settings_of,
    stored,
    write_metadata,
)

DAY_MS = 86_400_000


def properties(text: str) -> Resolver:
    return Resolver(properties=read_properties(parse_properties(text, "server.properties"), "server.properties"))


def settings_in(log_dir: Path, resolver: Resolver | None = None, version: str | None = None) -> list[Settings]:
    return [known(each) for each in settings_of(log_dir, resolver=resolver, version=version).values()]


@pytest.mark.parametrize(
    ("level", "version"),
    [
        (1, "3.0"), (2, "3.1"), (3, "3.2"), (4, "3.3"), (7, "3.3"), (8, "3.4"), (9, "3.5"), (11, "3.5"), (12, "3.6"),
        (14, "3.6"), (15, "3.7"), (19, "3.7"), (20, "3.8"), (21, "3.9"), (22, "4.0"), (25, "4.0"), (26, "4.1"), (27, "4.1"),
        (28, "4.2"), (29, "4.2"), (30, "4.3"), (31, "4.4"), (33, "4.4"), (99, NEWEST),
    ],
)  # fmt: skip
def test_the_metadata_version_decides(level: int, version: str) -> None:
    found = kafka_version(None, {"metadata.version": level}, " /meta", properties("inter.broker.protocol.version=2.8"))
    note = ", which is newer" if level == 99 else ""
    assert found == KafkaVersion(version, f"metadata.version {level} of the metadata log /meta{note}")


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


def test_the_feature_level_is_read_from_the_metadata_log_and_the_newest_rules_apply_without_any_source(tmp_path: Path) -> None:
    empty_logs(tmp_path, "orders-0")
    assert [each.kafka for each in settings_in(tmp_path)] == [KafkaVersion(NEWEST, UNKNOWN)]
    write_metadata(tmp_path, [feature("metadata.version", 7), *stored("orders"), feature("metadata.version", 21)])
    assert [each.kafka.version for each in settings_in(tmp_path)] == ["3.9"]


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


def test_a_set_must_be_of_the_clusters_version_if_that_is_known(tmp_path: Path) -> None:
    empty_logs(tmp_path, "orders-0")
    sets = Resolver(read_sets(["message.timestamp.difference.max.ms=1", "remote.copy.lag.ms=1"]))
    assert len(settings_in(tmp_path, sets)) == 1
    write_metadata(tmp_path, [feature("metadata.version", 21), *stored("orders")])
    with pytest.raises(ConfigError, match=r"Kafka 3\.9 has no configuration remote\.copy\.lag\.ms, which is since 4\.4"):
        settings_in(tmp_path, sets)


POLICIES = {
    "second/orders-1": "compact",
    "second/customers-0": "compact",
    "second/clickstream-1": "delete",
    "second/sessions-0": "compact,delete",
    "second/__consumer_offsets-0": "compact",
}


def test_directories_of_one_cluster_share_the_metadata_log_of_one_of_them(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    for found in (settings_of(first, second), settings_of(second, first)):
        assert policies(found, "second/") == POLICIES
    told = str(known(found["second/orders-1"]).topic.source("cleanup.policy"))
    assert told == f"the topic's configuration in the metadata log {first / METADATA}"
    # even if no log of its own directory is selected
    for path in first.iterdir():
        if path.is_dir() and path.name != METADATA:
            shutil.rmtree(path)
    assert policies(settings_of(first, second), "second/") == POLICIES


def test_directories_of_zookeeper_brokers_have_no_policy_except_for_internal_topics(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "zk", "orders-0", "__consumer_offsets-3")
    (log_dir / "meta.properties").write_text("version=0\nbroker.id=4\ncluster.id=zk-cluster\n", encoding="utf-8")
    found = settings_of(log_dir)
    assert policies(found) == {"zk/orders-0": "unknown", "zk/__consumer_offsets-3": "compact"}
    orders, offsets = (known(each).topic for _, each in sorted(found.items(), reverse=True))
    assert (orders.cleanup_policy, orders.source("cleanup.policy").origin) == ("delete", Origin.DEFAULT)
    assert "no metadata log is in the directories of this call" in str(orders.policy_guess)
    assert offsets.source("cleanup.policy").origin is Origin.INTERNAL


def test_the_metadata_log_of_another_cluster_is_ignored(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    identify(second, cluster="another-cluster")
    found = settings_of(first, second)
    assert set(policies(found, "second/").values()) == {"unknown", "compact"}
    guess = str(known(found["second/orders-1"]).topic.policy_guess)
    assert f"is of cluster another-cluster, the metadata log {first / METADATA} of cluster {CLUSTER};" in guess


def test_a_named_metadata_log_of_another_cluster_does_not_override_the_directorys_own(tmp_path: Path) -> None:
    mine, other = empty_logs(tmp_path / "mine", "orders-0"), empty_logs(tmp_path / "other")
    for log_dir, policy, cluster in ((mine, "compact", "a"), (other, "delete", "b")):
        write_metadata(log_dir, stored("orders", policy))
        identify(log_dir, cluster=cluster)
    with pytest.raises(UsageError, match="of cluster b, the log directory .*mine of cluster a"):
        settings_of(mine, metadata=[other])


def test_an_export_uses_the_named_metadata_log_and_reports_it(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    identify(second, cluster=None)
    assert set(policies(settings_of(first, second), "second/").values()) == {"unknown", "compact"}
    found = settings_of(second, metadata=[first])
    assert policies(found, "second/") == POLICIES
    assert str(known(found["second/orders-1"]).topic.source("cleanup.policy")).endswith(
        f"the metadata log {first / METADATA}, named by --metadata and not known to be of the same cluster"
    )


def test_an_export_uses_none_of_the_metadata_logs_of_two_clusters(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    identify(second, cluster=None)
    other = empty_logs(tmp_path / "other", "orders-7")
    write_metadata(other, stored("orders", "delete"))
    identify(other, cluster="another-cluster")
    with pytest.raises(UsageError, match="of an unknown cluster"):
        settings_of(second, metadata=[first, other])
    found = settings_of(second, other, metadata=[other])
    assert policies(found, "second/")["second/customers-0"] == "unknown"


def test_a_metadata_log_without_a_cluster_applies_to_other_directories_only_if_named(tmp_path: Path) -> None:
    mine, other = empty_logs(tmp_path / "mine", "orders-0"), empty_logs(tmp_path / "second", "orders-1")
    write_metadata(mine, stored("orders", "compact"))
    identify(other)
    assert policies(settings_of(mine, other)) == {"mine/orders-0": "compact", "second/orders-1": "unknown"}
    assert policies(settings_of(other, metadata=[mine]), "second/") == {"second/orders-1": "compact"}


@pytest.mark.parametrize(("newer", "older"), [((3, 0), (2, 50)), ((2, 50), (2, 10))], ids=["epoch", "end offset"])
def test_of_two_metadata_logs_of_a_cluster_the_newer_applies(
    tmp_path: Path, newer: tuple[int, int], older: tuple[int, int]
) -> None:
    for number, (name, (epoch, more), policy) in enumerate((("new", newer, "compact"), ("old", older, "delete"))):
        log_dir = empty_logs(tmp_path / name, f"orders-{number}")
        identify(log_dir)
        write_metadata(log_dir, [*stored("orders", policy), *[config("x", "segment.ms", "7")] * more], epoch=epoch)
    new, old = tmp_path / "new", tmp_path / "old"
    calls = (settings_of(new, old), settings_of(old, new), settings_of(old, metadata=[new]), settings_of(new, metadata=[old]))
    for found in calls:
        assert set(policies(found).values()) == {"compact"}


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_damaged_metadata_log_fails_every_directory_of_its_cluster_and_no_other(tmp_path: Path, at: float) -> None:
    first, second = jbod(tmp_path)
    other = empty_logs(tmp_path / "other", "orders-8")
    write_metadata(other, stored("orders", "delete"))
    identify(other, cluster="another-cluster")
    log = first / METADATA / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[int(len(data) * at)] ^= 0xFF
    log.write_bytes(data)
    intact = empty_logs(tmp_path / "intact", "orders-9")
    identify(intact)
    write_metadata(intact, stored("orders", "compact"), epoch=0)
    found = settings_of(first, second, other, intact)
    failed = {name for name, each in found.items() if isinstance(each, CorruptLogError) and str(log) in str(each)}
    assert failed == {name for name in found if not name.startswith("other/")}
    assert policies(found, "other/") == {"other/orders-8": "delete"}
    assert all(isinstance(each, CorruptLogError) for each in settings_of(second, metadata=[first]).values())


def test_a_topic_younger_than_the_metadata_log_is_unknown(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    log = first / METADATA / f"{0:020d}.log"
    data = log.read_bytes()
    created = next(batch for batch in iter_batches(data) if b"customers" in data[batch.position : batch.position + batch.size])
    log.write_bytes(data[: created.position])
    found = settings_of(first, second)
    younger = ("second/customers-0", "second/clickstream-1", "second/sessions-0")
    assert policies(found, "second/") == {**POLICIES, **dict.fromkeys(younger, "unknown")}
    guess = str(known(found["second/customers-0"]).topic.policy_guess)
    assert f"the metadata log {first / METADATA} does not know the topic;" in guess


def test_the_policy_of_a_topic_with_the_same_name_and_another_id_is_ignored(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0", "orders-1", "orders-2")
    values = [*stored("orders", "delete"), config("orders", "retention.ms", "5")]
    write_metadata(log_dir, values)
    for partition, topic_id in ((0, b"x" * 16), (1, b"y" * 16)):
        text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
        (log_dir / f"orders-{partition}" / "partition.metadata").write_text(text, encoding="utf-8")
    found = settings_of(log_dir)
    assert policies(found) == {"logs/orders-0": "delete", "logs/orders-1": "unknown", "logs/orders-2": "delete"}
    other = known(found["logs/orders-1"]).topic
    assert other.retention_ms != 5
    ids = f"topic id {topic_id_text(b'x' * 16)}, partition.metadata has {topic_id_text(b'y' * 16)}"
    assert f"knows another topic of this name ({ids});" in str(other.policy_guess)


def test_a_malformed_partition_metadata_fails_its_log(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0", "orders-1")
    write_metadata(log_dir, stored("orders", "delete"))
    (log_dir / "orders-0" / "partition.metadata").write_text("version: 0\n", encoding="utf-8")
    found = settings_of(log_dir)
    assert isinstance(found["logs/orders-0"], CorruptLogError)
    assert policies(found, "logs/orders-1") == {"logs/orders-1": "delete"}


def changed(*policies: str | None) -> list[bytes]:
    """A topic whose policy was ``delete`` at first."""
    return [*stored("orders", "delete"), *(config("orders", "cleanup.policy", policy) for policy in policies)]


@pytest.mark.parametrize(
    ("values", "properties", "policy"),
    [
        pytest.param(changed("compact"), None, "compact", id="changed"),
        pytest.param(changed("compact", "compact,delete"), None, "compact,delete", id="changed twice"),
        pytest.param(changed("compact", None), None, "unknown", id="removed"),
        pytest.param(changed("compact", None, "delete"), None, "delete", id="set again"),
        pytest.param([*changed(), removal(b"x" * 16)], None, "unknown", id="deleted topic"),
        pytest.param(stored("orders"), None, "unknown", id="never set"),
        pytest.param(stored("orders"), read_properties([], "server.properties"), "delete", id="server.properties are known"),
    ],
)
def test_the_policy_is_the_newest_one_that_the_metadata_log_has_of_the_topic(
    tmp_path: Path, values: list[bytes], properties: tuple[Setting, ...] | None, policy: str
) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    write_metadata(log_dir, values)
    assert policies(settings_of(log_dir, resolver=Resolver(properties=properties))) == {"logs/orders-0": policy}


def test_a_brokers_dynamic_default_is_that_of_the_directorys_own_node(tmp_path: Path) -> None:
    values = [*stored("orders"), config("2", "log.cleanup.policy", "compact", kind=4)]
    values += [config("", "log.cleanup.policy", "compact,delete", kind=4), config("3", "log.roll.ms", "9", kind=4)]
    first = empty_logs(tmp_path / "first")
    write_metadata(first, values)
    for node in (2, 3):
        identify(empty_logs(tmp_path / f"node-{node}", f"orders-{node}"), node=node)
    identify(first, node=1)
    found = settings_of(first, tmp_path / "node-2", tmp_path / "node-3")
    assert policies(found) == {"node-2/orders-2": "compact", "node-3/orders-3": "compact,delete"}


def test_without_any_metadata_log_meta_properties_need_not_be_readable(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    (log_dir / "meta.properties").write_text("version=77\n", encoding="utf-8")
    found = settings_of(log_dir, resolver=Resolver(read_sets(["cleanup.policy=compact"])))
    assert policies(found) == {"logs/orders-0": "compact"}
    write_metadata(log_dir, stored("orders", "delete"))
    assert isinstance(settings_of(log_dir)["logs/orders-0"], CorruptLogError)


FOOTER = Batch([Record(9, 1, b"\x00\x00\x00\x04", b"\x00\x00")], control=True).encode()


def read(log_dir: Path) -> MetadataLog:
    return MetadataLog(LocalFileSystem(), str(log_dir / METADATA))


def snapshot(log_dir: Path, end_offset: int, data: bytes) -> Path:
    path = log_dir / METADATA / f"{end_offset:020d}-{1:010d}.checkpoint"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def batch(*values: bytes) -> bytes:
    return Batch([Record(at, 1, None, value) for at, value in enumerate(values)]).encode()


def test_the_position_is_the_end_of_the_log(tmp_path: Path) -> None:
    write_metadata(tmp_path, stored("orders", "compact"), epoch=3)
    assert read(tmp_path).position == Position(3, 2)
    snapshot(tmp_path, 7, batch(*stored("sales", "delete")) + FOOTER)
    assert read(tmp_path).position == Position(3, 7)
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], epoch=4, base_offset=7)
    found = read(tmp_path)
    assert found.position == Position(4, 8)
    assert found.configs.topics == {"orders": {"segment.ms": "5"}, "sales": {"cleanup.policy": "delete"}}


@pytest.mark.parametrize("end_offset", [4, 5])
def test_the_settings_of_a_removed_topic_do_not_apply_to_its_successor(tmp_path: Path, end_offset: int) -> None:
    """Segments below a snapshot's end are kept for days; the newest snapshot may end within one."""
    first, second = b"a" * 16, b"b" * 16
    records = [*stored("orders", "compact", first), removal(first), topic("orders", second), config("sales", "x", "1")]
    for at, value in enumerate(records):
        write_metadata(tmp_path, [value], base_offset=at)
    expected = topic_id_text(second)
    assert read(tmp_path).configs.topics == {"sales": {"x": "1"}}
    snapshot(tmp_path, end_offset, batch(topic("orders", second)) + FOOTER)
    assert read(tmp_path).configs.topics == ({"sales": {"x": "1"}} if end_offset == 4 else {})
    assert read(tmp_path).configs.topic_ids == {"orders": expected}
    # one segment with all records, in one batch and in several
    data = b"".join((tmp_path / METADATA / f"{at:020d}.log").read_bytes() for at in range(5))
    for at in range(5):
        (tmp_path / METADATA / f"{at:020d}.log").unlink()
    for content in (data, Batch([Record(at, 1, None, value) for at, value in enumerate(records)]).encode()):
        (tmp_path / METADATA / f"{0:020d}.log").write_bytes(content)
        found = read(tmp_path)
        assert found.configs.topics == ({"sales": {"x": "1"}} if end_offset == 4 else {})
        assert found.configs.topic_ids == {"orders": expected}
        assert found.position == Position(1, 5)


def test_a_removed_topic_whose_creation_is_in_a_deleted_segment_has_no_settings(tmp_path: Path) -> None:
    """As brokers leave it: the removal names the topic by its id only."""
    for at, value in enumerate([config("orders", "cleanup.policy", "compact"), removal(b"a" * 16), topic("orders", b"b" * 16)]):
        write_metadata(tmp_path, [value], base_offset=7 + at)
    snapshot(tmp_path, 10, batch(topic("orders", b"b" * 16)) + FOOTER)
    assert read(tmp_path).configs.topics == {}


def test_a_setting_that_was_removed_before_the_snapshot_is_not_set_again(tmp_path: Path) -> None:
    write_metadata(tmp_path, [*stored("orders", "compact"), config("orders", "retention.ms", "1")])
    snapshot(tmp_path, 4, batch(*stored("orders", "compact")) + FOOTER)
    assert read(tmp_path).configs.topics == {"orders": {"cleanup.policy": "compact"}}


def test_a_segment_below_the_snapshot_is_not_read(tmp_path: Path) -> None:
    """A broker deletes it in time, and does not read it again."""
    path = write_metadata(tmp_path, stored("orders", "compact")) / f"{0:020d}.log"
    path.write_bytes(b"damaged")
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], base_offset=2)
    snapshot(tmp_path, 2, batch(*stored("orders", "delete")) + FOOTER)
    assert read(tmp_path).configs.topics == {"orders": {"cleanup.policy": "delete", "segment.ms": "5"}}


def test_a_snapshot_without_its_footer_is_damage(tmp_path: Path) -> None:
    data = batch(*stored("orders", "compact")) + FOOTER
    for cut in (len(data) - len(FOOTER), len(data) - 1, 3, 0):
        path = snapshot(tmp_path, 2, data[:cut])
        with pytest.raises(CorruptLogError, match="snapshot ends without its footer") as refusal:
            read(tmp_path)
        assert refusal.value.path == str(path)
    snapshot(tmp_path, 2, data)
    assert read(tmp_path).configs.topics == {"orders": {"cleanup.policy": "compact"}}


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    write_metadata(tmp_path, stored("orders", "compact"))
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], base_offset=3)
    with pytest.raises(CorruptLogError, match="offsets 2 to 2 are missing before this segment"):
        read(tmp_path)
    snapshot(tmp_path, 3, batch(*stored("orders", "compact")) + FOOTER)
    assert read(tmp_path).position.end_offset == 4
    for file in (tmp_path / METADATA).glob("*.checkpoint"):
        file.unlink()
    (tmp_path / METADATA / f"{0:020d}.log").unlink()
    with pytest.raises(CorruptLogError, match="offsets 0 to 2 are missing before this segment"):
        read(tmp_path)


def test_only_the_last_segment_may_have_a_torn_tail(tmp_path: Path) -> None:
    path = write_metadata(tmp_path, stored("orders", "compact")) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + batch(b"torn")[:-3])
    assert read(tmp_path).position.end_offset == 2
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], base_offset=3)
    with pytest.raises(CorruptLogError, match="offsets 2 to 2 are missing"):
        read(tmp_path)


def test_a_malformed_record_is_reported_with_its_file(tmp_path: Path) -> None:
    path = write_metadata(tmp_path, [b"\x09\x04\x00"])
    with pytest.raises(CorruptLogError, match="frame version 9") as refusal:
        read(tmp_path)
    assert refusal.value.path == str(path / f"{0:020d}.log")
