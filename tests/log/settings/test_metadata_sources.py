"""Which metadata log speaks for which directory: never that of another cluster, never an older one, never a damaged one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_properties, read_sets
from compaction.errors import CorruptLogError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.formats.checkpoints import topic_id_text
from compaction.formats.message_set import iter_batches
from compaction.log.metadata_logs import MetadataSources
from compaction.log.settings import Settings
from tests.formats.test_metadata_log import config, removal
from tests.log.settings.guesses import (
    CLUSTER,
    METADATA,
    SECOND,
    empty_logs,
    identify,
    jbod,
    policy_of,
    settings_of,
    stored,
    write_metadata,
)

POLICIES = {
    "second/orders-1": "compact",
    "second/customers-0": "compact",
    "second/clickstream-1": "delete",
    "second/sessions-0": "compact,delete",
    "second/__consumer_offsets-0": "compact",
}


def policies(found: dict[str, Settings | Exception]) -> dict[str, str]:
    return {name: policy_of(each) for name, each in found.items() if name.startswith("second/")}


def test_topics_in_one_directory_of_a_jbod_broker_are_not_deletable(tmp_path: Path) -> None:
    _, second = jbod(tmp_path)
    assert policies(settings_of(second)) == {
        **dict.fromkeys(POLICIES, "unknown"),
        "second/__consumer_offsets-0": "compact",
    }


def test_directories_of_one_cluster_share_the_metadata_log_of_one_of_them(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    for found in (settings_of(first, second), settings_of(second, first)):
        assert policies(found) == POLICIES
    orders = found["second/orders-1"]
    assert isinstance(orders, Settings)
    told = str(orders.topic.source("cleanup.policy"))
    assert told == f"the topic's configuration in the metadata log {first / METADATA}"


@pytest.mark.parametrize("named", [".", METADATA], ids=["the log directory", "the metadata log itself"])
def test_a_metadata_log_can_be_named(tmp_path: Path, named: str) -> None:
    first, second = jbod(tmp_path)
    assert policies(settings_of(second, metadata=[first.resolve() / named])) == POLICIES


def test_a_metadata_log_is_shared_even_if_no_log_of_its_own_directory_is_selected(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    for path in first.iterdir():
        if path.is_dir() and path.name != METADATA:
            shutil.rmtree(path)
    assert policies(settings_of(first, second)) == POLICIES


def test_directories_of_zookeeper_brokers_have_no_policy_except_for_internal_topics(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "zk", "orders-0", "__consumer_offsets-3")
    (log_dir / "meta.properties").write_text("version=0\nbroker.id=4\ncluster.id=zk-cluster\n", encoding="utf-8")
    found = settings_of(log_dir)
    assert {name: policy_of(each) for name, each in found.items()} == {
        "zk/orders-0": "unknown",
        "zk/__consumer_offsets-3": "compact",
    }


def test_the_metadata_log_of_another_cluster_is_ignored(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    identify(second, cluster="another-cluster")
    found = settings_of(first, second)
    assert set(policies(found).values()) == {"unknown", "compact"}
    orders = found["second/orders-1"]
    assert isinstance(orders, Settings)
    assert f"is of cluster another-cluster, the metadata log {first / METADATA} of cluster {CLUSTER};" in str(
        orders.topic.policy_guess
    )


def test_a_named_metadata_log_of_another_cluster_is_a_usage_error_with_both_names(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    identify(second, cluster="another-cluster")
    with pytest.raises(UsageError) as refusal:
        settings_of(second, metadata=[first])
    assert str(refusal.value) == (
        f"{first / METADATA}: --metadata: this metadata log is of cluster {CLUSTER}, the log directory {second} of cluster "
        "another-cluster; name the metadata log of the cluster that the directory is of"
    )


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
    assert set(policies(settings_of(first, second)).values()) == {"unknown", "compact"}
    found = settings_of(second, metadata=[first])
    assert policies(found) == POLICIES
    orders = found["second/orders-1"]
    assert isinstance(orders, Settings)
    assert str(orders.topic.source("cleanup.policy")).endswith(
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
    assert policies(found)["second/customers-0"] == "unknown"


def test_a_metadata_log_without_a_cluster_applies_to_other_directories_only_if_named(tmp_path: Path) -> None:
    mine, other = empty_logs(tmp_path / "mine", "orders-0"), empty_logs(tmp_path / "second", "orders-1")
    write_metadata(mine, stored("orders", "compact"))
    identify(other)
    assert {name: policy_of(each) for name, each in settings_of(mine, other).items()} == {
        "mine/orders-0": "compact",
        "second/orders-1": "unknown",
    }
    assert policies(settings_of(other, metadata=[mine])) == {"second/orders-1": "compact"}


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
        assert {policy_of(each) for each in found.values()} == {"compact"}


def test_a_damaged_metadata_log_fails_every_directory_of_its_cluster_and_no_other(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    other = empty_logs(tmp_path / "other", "orders-8")
    write_metadata(other, stored("orders", "delete"))
    identify(other, cluster="another-cluster")
    log = first / METADATA / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    intact = empty_logs(tmp_path / "intact", "orders-9")
    identify(intact)
    write_metadata(intact, stored("orders", "compact"), epoch=0)
    found = settings_of(first, second, other, intact)
    failed = {name for name, each in found.items() if isinstance(each, CorruptLogError) and str(log) in str(each)}
    assert failed == {name for name in found if not name.startswith("other/")}
    assert policy_of(found["other/orders-8"]) == "delete"
    assert all(isinstance(each, CorruptLogError) for each in settings_of(second, metadata=[first]).values())


def test_a_topic_younger_than_the_metadata_log_is_unknown(tmp_path: Path) -> None:
    first, second = jbod(tmp_path)
    log = first / METADATA / f"{0:020d}.log"
    data = log.read_bytes()
    created = next(batch for batch in iter_batches(data) if b"customers" in data[batch.position : batch.position + batch.size])
    log.write_bytes(data[: created.position])
    found = settings_of(first, second)
    assert policy_of(found["second/customers-0"]) == "unknown"
    assert policy_of(found["second/orders-1"]) == "compact"
    customers = found["second/customers-0"]
    assert isinstance(customers, Settings)
    assert f"the metadata log {first / METADATA} does not know the topic;" in str(customers.topic.policy_guess)


def test_a_deleted_topics_policy_is_unknown(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    write_metadata(log_dir, [*stored("orders", "delete"), removal(b"x" * 16)])
    assert policy_of(settings_of(log_dir)["logs/orders-0"]) == "unknown"


def test_the_policy_of_a_topic_with_the_same_name_and_another_id_is_ignored(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0", "orders-1", "orders-2")
    values = [*stored("orders", "delete"), config("orders", "retention.ms", "5")]
    write_metadata(log_dir, values)
    for partition, topic_id in ((0, b"x" * 16), (1, b"y" * 16)):
        text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
        (log_dir / f"orders-{partition}" / "partition.metadata").write_text(text, encoding="utf-8")
    found = settings_of(log_dir)
    assert {name[-1]: policy_of(each) for name, each in found.items()} == {"0": "delete", "1": "unknown", "2": "delete"}
    other = found["logs/orders-1"]
    assert isinstance(other, Settings)
    assert other.topic.retention_ms != 5
    ids = f"topic id {topic_id_text(b'x' * 16)}, partition.metadata has {topic_id_text(b'y' * 16)}"
    assert f"knows another topic of this name ({ids});" in str(other.topic.policy_guess)


def test_a_malformed_partition_metadata_fails_its_log(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0", "orders-1")
    write_metadata(log_dir, stored("orders", "delete"))
    (log_dir / "orders-0" / "partition.metadata").write_text("version: 0\n", encoding="utf-8")
    found = settings_of(log_dir)
    assert isinstance(found["logs/orders-0"], CorruptLogError)
    assert policy_of(found["logs/orders-1"]) == "delete"


def test_a_topic_without_its_own_policy_needs_server_properties(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    write_metadata(log_dir, stored("orders"))
    assert policy_of(settings_of(log_dir)["logs/orders-0"]) == "unknown"
    given = Resolver(properties=read_properties([], "server.properties"))
    assert policy_of(settings_of(log_dir, resolver=given)["logs/orders-0"]) == "delete"


def test_a_brokers_dynamic_default_is_that_of_the_directorys_own_node(tmp_path: Path) -> None:
    values = [*stored("orders"), config("2", "log.cleanup.policy", "compact", kind=4)]
    values += [config("", "log.cleanup.policy", "compact,delete", kind=4), config("3", "log.roll.ms", "9", kind=4)]
    first = empty_logs(tmp_path / "first")
    write_metadata(first, values)
    for node in (2, 3):
        identify(empty_logs(tmp_path / f"node-{node}", f"orders-{node}"), node=node)
    identify(first, node=1)
    found = settings_of(first, tmp_path / "node-2", tmp_path / "node-3")
    assert {name: policy_of(each) for name, each in found.items()} == {
        "node-2/orders-2": "compact",
        "node-3/orders-3": "compact,delete",
    }


def test_a_policy_changed_between_runs_has_its_newest_value(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    values = stored("orders", "delete")
    seen = []
    for change in ("compact", "compact,delete", None, "delete"):
        write_metadata(log_dir, values)
        seen.append(policy_of(settings_of(log_dir)["logs/orders-0"]))
        values.append(config("orders", "cleanup.policy", change))
    write_metadata(log_dir, values)
    seen.append(policy_of(settings_of(log_dir)["logs/orders-0"]))
    assert seen == ["delete", "compact", "compact,delete", "unknown", "delete"]


def test_without_any_metadata_log_meta_properties_need_not_be_readable(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    (log_dir / "meta.properties").write_text("version=77\n", encoding="utf-8")
    found = settings_of(log_dir, resolver=Resolver(read_sets(["cleanup.policy=compact"])))
    assert policy_of(found["logs/orders-0"]) == "compact"
    write_metadata(log_dir, stored("orders", "delete"))
    assert isinstance(settings_of(log_dir)["logs/orders-0"], CorruptLogError)


def test_naming_a_directory_without_a_metadata_log_is_an_error(tmp_path: Path) -> None:
    log_dir = empty_logs(tmp_path / "logs", "orders-0")
    with pytest.raises(UsageError, match="--metadata: there is no metadata log here"):
        MetadataSources(LocalFileSystem(), [str(log_dir)], [str(log_dir)])


def test_the_second_directory_has_logs_of_every_policy() -> None:
    assert {f"second/{name}" for name in SECOND} == set(POLICIES)
