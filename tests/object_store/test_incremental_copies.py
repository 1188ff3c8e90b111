"""Incremental copies in a store: what is copied inside it, what moves over the network, and how objects are identified."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.report import LogReport
from tests.kafka.encode import Batch, Record
from tests.log.logs import NOW_MS, build, put_snapshot
from tests.object_store.fixtures import Bucket, S3Bucket, any_bucket, bucket, client, on_one_store, store
from tests.object_store.local_run import run
from tests.object_store.server import Request, Store

__all__ = ["any_bucket", "bucket", "client", "store"]

pytestmark = pytest.mark.filterwarnings("default")

COMPACT = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0.5")
KINDS = (".log", ".index", ".timeindex")
#: larger than what a run reads as a whole
_VALUE_BYTES = 16_000


def add(log_dir: Path, topic: str, *bases: int, values: int = 60) -> None:
    """Segments of 1 MB; the last one of a log is active and small."""
    path = log_dir / f"{topic}-0"
    path.mkdir(parents=True, exist_ok=True)
    for base in bases:
        offsets = range(base, base + values)
        records = [Record(at, NOW_MS, b"%d" % at, random.Random(at).randbytes(_VALUE_BYTES)) for at in offsets]
        batches = [Batch([record]).encode() for record in records]
        build(base, batches).put(LocalFileSystem(), str(path))
        # without one, the headers of all batches are read
        put_snapshot(LocalFileSystem(), str(path), base)


def source_of(root: Path, logs: int = 5) -> Path:
    for number in range(logs):
        add(root, f"t{number}", 0, 100, 200)
        add(root, f"t{number}", 300, values=1)
    return root


def copy(source: object, target: str, *options: object) -> dict[str, LogReport]:
    """A copy whose active segments are not cleaned."""
    report = run("--log-dir", source, "--output-dir", target, *COMPACT, *options, include_active=False)
    return {log.topic: log for log in report.logs}


def logs_of(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in objects.items() if name.endswith(KINDS)}


def moved(requests: list[Request], sizes: dict[str, int]) -> int:
    """The bytes of objects, and of parts of them, in either direction."""
    read = (request for request in requests if request.method == "GET")
    received = sum(sizes.get(each.key, 0) if each.range_bytes is None else each.range_bytes for each in read)
    uploads = {request.key for request in requests if request.is_write} - copied(requests)
    # tasks upload under temporary names
    return received + sum(sizes.get(key.partition(".clean")[0], 0) for key in uploads)


def copied(requests: list[Request]) -> set[str]:
    return {request.key for request in requests if request.copies}


@pytest.mark.s3
def test_a_store_moves_only_what_is_new(store: Store, bucket: S3Bucket, tmp_path: Path) -> None:
    source, seen = source_of(tmp_path / "kafka"), []
    copy(source, bucket.address("monday"))
    # one of 20 segments is new
    add(source, "t0", 400)
    add(source, "t0", 500, values=1)
    for options in (("full",), ("tuesday", "--since", bucket.address("monday"))):
        store.forget()
        reports = copy(source, bucket.address(options[0]), *options[1:])
        seen.append(list(store.requests))
    assert {topic: log.since for topic, log in reports.items()} == {
        "t0": "grown", **{f"t{number}": "unchanged" for number in range(1, 5)}
    }  # fmt: skip
    objects = {name: bucket.tree(name) for name in ("monday", "full", "tuesday")}
    sizes = {f"{bucket.name}/{copy}/{name}": len(data) for copy, tree in objects.items() for name, data in tree.items()}
    full, since = (moved(requests, sizes) for requests in seen)
    assert full >= 2 * sum(map(len, logs_of(objects["full"]).values()))
    assert since <= 0.1 * full
    # one request for each object that is taken over
    taken = {name for name in objects["monday"] if name.endswith(KINDS) and int(Path(name).stem) < 300}
    puts = Counter(request.key for request in seen[1] if request.is_write)
    assert len(taken) >= 15
    assert {puts[f"{bucket.name}/tuesday/{name}"] for name in taken} == {1}
    assert {f"{bucket.name}/tuesday/{name}" for name in taken} <= copied(seen[1])
    assert all(objects["tuesday"][name] == objects["monday"][name] for name in taken)


@on_one_store
def test_objects_are_identified_by_their_etags(any_bucket: Bucket, tmp_path: Path) -> None:
    any_bucket.put_tree(source_of(tmp_path / "kafka", 2), "kafka")
    source = any_bucket.address("kafka")
    copy(source, any_bucket.address("monday"))
    reports = copy(source, any_bucket.address("tuesday"), "--since", any_bucket.address("monday"))
    assert {log.since for log in reports.values()} == {"unchanged"}
    assert logs_of(any_bucket.tree("tuesday")) == logs_of(any_bucket.tree("monday"))
    key = f"kafka/t0-0/{100:020d}.log"
    changed = bytearray(any_bucket.get(key))
    any_bucket.put(key, bytes(changed[:-1]) + bytes([changed[-1] ^ 1]))
    reports = copy(source, any_bucket.address("wednesday"), "--since", any_bucket.address("tuesday"))
    assert (reports["t0"].since, reports["t1"].since) == ("full", "unchanged")
    assert reports["t0"].since_reason == "segment 100 has changed"


@on_one_store
def test_a_changed_object_of_the_previous_copy_is_not_taken(any_bucket: Bucket, tmp_path: Path) -> None:
    source = source_of(tmp_path / "kafka", 2)
    copy(source, any_bucket.address("monday"))
    key = f"monday/t0-0/{0:020d}.log"
    good = any_bucket.get(key)
    any_bucket.put(key, good[:-1] + bytes([good[-1] ^ 1]))
    reports = copy(source, any_bucket.address("tuesday"), "--since", any_bucket.address("monday"))
    assert (reports["t0"].since, reports["t1"].since) == ("full", "unchanged")
    assert any_bucket.get(f"tuesday/t0-0/{0:020d}.log") == good
