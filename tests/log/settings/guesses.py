"""Log directories of brokers whose topics' settings are stored elsewhere, or nowhere."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.files.local import LocalFileSystem
from compaction.log.discover import Selector, discover
from compaction.log.settings import Settings, read_settings
from tests.formats.test_metadata_log import config, topic
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record

METADATA = "__cluster_metadata-0"
CLUSTER = "b2ZmbGluZS1jbGVhbmVyLQ"
#: the partitions of the sample that the broker's second directory holds: every policy that the sample has
SECOND = ("orders-1", "customers-0", "clickstream-1", "sessions-0", "__consumer_offsets-0")


def identify(log_dir: Path, *, cluster: str | None = CLUSTER, node: int = 1) -> None:
    """Writes ``meta.properties``; none at all without a cluster."""
    path = log_dir / "meta.properties"
    path.unlink(missing_ok=True)
    if cluster is not None:
        path.write_text(f"version=1\nnode.id={node}\ncluster.id={cluster}\n", encoding="utf-8")


def jbod(parent: Path) -> tuple[Path, Path]:
    """The sample as a broker with two log directories has it: the metadata log is in the first."""
    first, second = unpack_sample(parent), parent / "second"
    second.mkdir()
    for name in SECOND:
        (first / name).rename(second / name)
    for file in first.glob("*-checkpoint"):
        shutil.copy2(file, second)
    identify(second)
    return first, second


def stored(name: str, policy: str | None = None, topic_id: bytes = b"x" * 16) -> list[bytes]:
    """Metadata records that create a topic."""
    return [topic(name, topic_id), *([] if policy is None else [config(name, "cleanup.policy", policy)])]


def write_metadata(log_dir: Path, values: Sequence[bytes], *, epoch: int = 1, base_offset: int = 0) -> Path:
    """A metadata log of one batch; its directory."""
    path = log_dir / METADATA
    path.mkdir(parents=True, exist_ok=True)
    rows = [Record(base_offset + at, 1, None, value) for at, value in enumerate(values)]
    batch = Batch(rows, leader_epoch=epoch).encode()
    (path / f"{base_offset:020d}.log").write_bytes(batch)
    return path


def empty_logs(log_dir: Path, *names: str) -> Path:
    """Partition directories without a file."""
    for name in names:
        (log_dir / name).mkdir(parents=True)
    return log_dir


def settings_of(
    *log_dirs: Path, metadata: Sequence[Path] = (), resolver: Resolver | None = None, version: str | None = None
) -> dict[str, Settings | Exception]:
    """The settings of all logs, by directory and log name."""
    dirs, named = tuple(map(str, log_dirs)), tuple(map(str, metadata))
    request = CompactionRequest(dirs, (), 0, resolver=resolver or Resolver(), metadata_dirs=named, kafka_version=version)
    locations = discover(LocalFileSystem(), dirs, Selector())
    found = read_settings(LocalFileSystem(), locations, request)
    return {f"{Path(each.log_dir).name}/{each.topic_partition}": one for each, one in zip(locations, found, strict=True)}


def known(found: Settings | Exception) -> Settings:
    """The settings of a log that has not failed."""
    assert isinstance(found, Settings), found
    return found


def policies(found: Mapping[str, Settings | Exception], prefix: str = "") -> dict[str, str]:
    """The policies of the logs whose names begin so, ``unknown`` if one is a guess."""
    topics = {name: known(each).topic for name, each in found.items() if name.startswith(prefix)}
    return {name: topic.cleanup_policy if topic.policy_guess is None else "unknown" for name, topic in topics.items()}
