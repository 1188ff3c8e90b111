"""A file system that is added as docs/how-to-add.md says, for zip archives, is read like a disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from compaction import compact
from compaction.errors import StorageError, UsageError
from compaction.files import filesystem, uri
from compaction.files.filesystem import ReadableFileSystem, Scheme, Storage, storage_of
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.log.discover import Selector, discover
from tests.files.remote_places import require_read_alike
from tests.files.zip_files import ZipFileSystem
from tests.golden import unpack_sample

ARCHIVES = Storage(appears_whole=False, round_trips=False, versions=False)


@pytest.fixture
def zip_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two changes of the page."""
    schemes = {**filesystem.SCHEMES, "zip": Scheme("zip", ARCHIVES, has_bucket=False)}
    archives, others = ZipFileSystem(), MixedFileSystem._of

    def of(files: MixedFileSystem, path: str) -> ReadableFileSystem:
        found: ReadableFileSystem = archives if storage_of(path) is ARCHIVES else others(files, path)
        return found

    for each in (filesystem, uri):
        monkeypatch.setattr(each, "SCHEMES", schemes)
    monkeypatch.setattr(MixedFileSystem, "_of", of)


def archive(log_dir: Path, path: Path) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as made:
        for file in sorted(log_dir.rglob("*")):
            if file.is_file():
                made.write(file, f"kafka/{file.relative_to(log_dir)}")


@pytest.fixture
def log_dir(tmp_path: Path, zip_files: None) -> Path:
    """A log directory, of which ``logs.zip`` has a copy."""
    made = unpack_sample(tmp_path)
    archive(made, tmp_path / "logs.zip")
    return made


def test_logs_in_an_archive_are_read_as_on_a_disk(tmp_path: Path, log_dir: Path) -> None:
    files = MixedFileSystem()
    address = uri.parse_uri(f"zip://{tmp_path}/logs.zip/kafka", "--log-dir")
    here, there = discover(LocalFileSystem(), [str(log_dir)], Selector()), discover(files, [address], Selector())
    assert [log.topic_partition for log in here] == [log.topic_partition for log in there] != []
    for ours, theirs in zip(here, there, strict=True):
        require_read_alike(Path(ours.path), files, theirs.path)


def test_a_copy_of_a_killed_brokers_log_in_an_archive_is_that_of_the_log(tmp_path: Path, log_dir: Path) -> None:
    *_, active = sorted((log_dir / "orders-0").glob("*.log"))
    active.write_bytes(active.read_bytes() + bytes(100) + b"?" * 90)
    (log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    archive(log_dir, tmp_path / "killed.zip")
    copied = []
    for number, source in enumerate((str(log_dir), f"zip://{tmp_path}/killed.zip/kafka")):
        target = tmp_path / f"copy-{number}"
        report = compact(source, topics=["orders"], output_dir=target, engine="local", as_of=1_800_000_000_000)
        assert report.exit_code == 0
        copied.append({path.name: path.read_bytes() for path in (target / "orders-0").iterdir()})
    assert copied[0] == copied[1]
    with pytest.raises(UsageError, match="output_dir: zip: URIs are only read; give a directory"):
        compact(str(log_dir), output_dir=f"zip://{tmp_path}/new.zip")


def test_what_is_missing_or_damaged_is_an_error_with_its_path(tmp_path: Path, log_dir: Path) -> None:
    files, address = MixedFileSystem(), f"zip://{tmp_path}/logs.zip"
    assert files.stat(f"{address}/kafka/nothing") is None
    (tmp_path / "bad.zip").write_bytes(b"none")
    for read, path, told in (
        (files.listdir, f"{address}/kafka/nothing", "no such directory in the archive"),
        (files.read_bytes, f"{address}/kafka/nothing", "no such file in the archive"),
        (files.listdir, f"zip://{tmp_path}/bad.zip", "is damaged"),
        (files.listdir, f"zip://{tmp_path}/none.zip", "no archive on this path"),
    ):
        with pytest.raises(StorageError, match=told):
            read(path)
    data = bytearray((tmp_path / "logs.zip").read_bytes())
    with ZipFile(tmp_path / "logs.zip") as opened:
        first = next(each for each in opened.infolist() if each.filename.endswith(".log"))
    for position in (first.header_offset, first.header_offset + 30 + len(first.filename) + 10):
        damaged = tmp_path / f"damaged-{position}.zip"
        damaged.write_bytes(data[:position] + bytes(4) + data[position + 4 :])
        with pytest.raises(StorageError, match="is damaged"):
            files.read_bytes(f"zip://{damaged}/{first.filename}")


def test_directories_named_like_archives_and_links_in_them(tmp_path: Path, log_dir: Path) -> None:
    inner = tmp_path / "old.zip"
    inner.mkdir()
    (tmp_path / "logs.zip").rename(inner / "logs.zip")
    link = ZipInfo("kafka/link.log")
    link.external_attr = 0o120777 << 16
    with ZipFile(inner / "logs.zip", "a") as opened:
        opened.writestr(link, "orders-0/00000000000000000000.log")
    files, address = MixedFileSystem(), f"zip://{inner}/logs.zip/kafka"
    assert "orders-0" in files.listdir(address)
    with pytest.raises(StorageError, match="symbolic link"):
        files.read_bytes(f"{address}/link.log")


def test_threads_share_a_file_and_a_replaced_archive_is_read_again(tmp_path: Path, log_dir: Path) -> None:
    files, address = MixedFileSystem(), f"zip://{tmp_path}/logs.zip"
    name = next(each.relative_to(log_dir) for each in sorted(log_dir.rglob("*.log")) if each.stat().st_size > 4096)
    data = (log_dir / name).read_bytes()
    with closing(files.open(f"{address}/kafka/{name}")) as file, ThreadPoolExecutor(4) as pool:
        starts = [(number * 997) % (len(data) - 64) for number in range(100)]
        assert list(pool.map(lambda start: file.read(start, 64), starts)) == [data[start : start + 64] for start in starts]
    with ZipFile(tmp_path / "logs.zip", "w") as opened:
        opened.writestr("other", b"new")
    assert files.read_bytes(f"{address}/other") == b"new"
