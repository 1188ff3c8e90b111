"""A finished output as the input of a run: an object that differs from its manifest entry fails its log. For each store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.commands import dump_log
from compaction.errors import CompactionError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, MARKER
from compaction.files.object_store import ObjectOutput
from compaction.files.uri import parse_uri
from compaction.output.publish import Publication
from compaction.report import LogStatus
from tests.files.remote_places import copying
from tests.object_store.fixtures import Bucket, any_bucket, on_one_store, published
from tests.object_store.local_run import COMPACT, OnDisk, figures, run

__all__ = ["any_bucket"]

pytestmark = pytest.mark.filterwarnings("default")


def missing(bucket: Bucket, key: str) -> str:
    bucket.remove(key)
    return "is missing"


def cut(bucket: Bucket, key: str) -> str:
    bucket.put(key, bucket.get(key)[:-1])
    return "bytes, _manifest.json lists it with"


def turned(bucket: Bucket, key: str) -> str:
    """Flip a bit of the first offset, which no checksum covers."""
    data = bytearray(bucket.get(key))
    data[7] ^= 1
    bucket.put(key, bytes(data))
    return "has "


def extra(bucket: Bucket, key: str) -> str:
    bucket.put(key.replace("/00000", "/00001"), bucket.get(key))
    return "is not listed in _manifest.json"


def read_by_the_source(address: str) -> list[object]:
    """The records of a log as the data source has them."""
    from compaction.source.data_source import KafkaLogReader, KafkaLogSource

    reader = KafkaLogReader({"path": address, "topic": "orders"}, KafkaLogSource({}).schema())
    return [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("any_bucket", "damage"),
    [
        # what a store says of an object that has changed
        pytest.param("bucket", turned, id="s3-turned", marks=pytest.mark.s3),
        *(
            pytest.param("google_bucket", each, id=f"gs-{each.__name__}", marks=pytest.mark.gs)
            for each in (missing, cut, turned, extra)
        ),
    ],
    indirect=["any_bucket"],
)
def test_only_the_log_with_a_changed_object_fails(
    any_bucket: Bucket, sample: Path, damage: Callable[[Bucket, str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    out = any_bucket.address("out")
    run("--log-dir", sample, "--output-dir", out, "--topic", "orders|ledger")
    before = {log.name: log.status for log in run("--log-dir", out, "--dry-run", *COMPACT).logs}
    assert LogStatus.FAILED not in before.values()
    assert read_by_the_source(out)
    key = next(key for key in sorted(any_bucket.keys("out/orders-0")) if key.endswith(".log"))
    told = damage(any_bucket, key)
    reports = run("--log-dir", out, "--dry-run", *COMPACT), run("--log-dir", out, "--output-dir", any_bucket.address("next"))
    for report in reports:
        failed = [log for log in report.logs if log.status is LogStatus.FAILED]
        assert [log.name for log in failed] == ["orders-0"]
        assert told in failed[0].reason and "out/orders-0/" in failed[0].reason
        assert {log.name for log in report.logs} == before.keys()
    assert not [name for name in published(any_bucket, "next") if name.startswith("orders-0/")]
    capfd.readouterr()
    assert dump_log.main(["--files", any_bucket.address("out/orders-0"), "--print-data-log"]) == 1
    assert told in capfd.readouterr().err
    with pytest.raises(CompactionError, match=told):
        read_by_the_source(out)


@on_one_store
@pytest.mark.parametrize("name", ["meta.properties", MANIFEST, f"__cluster_metadata-0/{0:020d}.log"])
def test_a_run_on_a_directory_with_a_changed_object_fails(any_bucket: Bucket, sample: Path, name: str) -> None:
    run("--log-dir", sample, "--output-dir", any_bucket.address("out"), "--topic", "ledger")
    cut(any_bucket, f"out/{name}")
    if name == MANIFEST:
        any_bucket.put(f"out/{name}", any_bucket.get(f"out/{name}")[:-20])
    if name.startswith("__"):
        reasons = [log.reason for log in run("--log-dir", any_bucket.address("out"), "--dry-run").logs]
        assert reasons and all("_manifest.json lists it with" in reason for reason in reasons)
    else:
        with pytest.raises(UsageError, match="_manifest.json"):
            run("--log-dir", any_bucket.address("out"), "--dry-run")


def test_late_uploads_after_ctrl_c_are_refused_as_input_and_do_not_disturb_the_next_run(
    any_bucket: Bucket, sample: Path, on_disk: OnDisk, caplog: pytest.LogCaptureFixture
) -> None:
    address = any_bucket.address("out")
    out = parse_uri(address, "--output-dir")
    publication = Publication(LocalFileSystem(), out, copying(str(sample)))
    publication._tasks_may_write = True
    late = ObjectOutput(f"{out}/orders-0/{0:020d}.log.clean.late")
    late.write([b"late"])
    with caplog.at_level(logging.WARNING):
        publication.abort()
    assert f"keeping {MARKER}, as tasks may still write here; the next run into this directory cleans up" in caplog.text
    late.close(sync=True)
    assert set(any_bucket.tree("out")) == {MARKER, f"orders-0/{0:020d}.log.clean.late"}
    with pytest.raises(UsageError, match="unfinished"):
        run("--log-dir", address, "--dry-run")
    with pytest.raises(CompactionError, match="unfinished"):
        read_by_the_source(address)
    run("--log-dir", sample, "--output-dir", address)
    assert published(any_bucket) == on_disk[0]


def test_a_late_upload_of_a_dead_run_is_ignored(any_bucket: Bucket, sample: Path, on_disk: OnDisk) -> None:
    address = any_bucket.address("out")
    late = ObjectOutput(f"{parse_uri(address, '--output-dir')}/orders-0/{0:020d}.log.clean.late")
    late.write([b"late"])
    run("--log-dir", sample, "--output-dir", address)
    expected = figures(run("--log-dir", address, "--dry-run", *COMPACT))
    late.close(sync=True)
    assert any_bucket.get(f"out/orders-0/{0:020d}.log.clean.late") == b"late"
    assert figures(run("--log-dir", address, "--dry-run", *COMPACT)) == expected
    run("--log-dir", address, "--output-dir", any_bucket.address("next"))
    assert not [name for name in published(any_bucket, "next") if ".clean" in name]
