"""The commands of each recipe run in their order, word for word but for the places, on copies of a broker's logs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import compaction
from tests.golden import unpack_sample

ROOT = Path(__file__).resolve().parent.parent
#: commands of the system and of Kafka, which do nothing here
_STUBS = "kafka-server-start.sh() { :; }\n"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_WARNING = "[2026-11-22 02:00:01,001] INFO Starting the log cleaner (org.apache.kafka.storage.internals.log.LogCleaner)\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root with the sample as a broker's directory, as a backup and as a snapshot."""
    logs = unpack_sample(tmp_path / "unpacked")
    for name in ("var/lib/kafka/data", "backup/kafka-1", "snap/data"):
        shutil.copytree(logs, tmp_path / name)
    (tmp_path / "opt/kafka/logs").mkdir(parents=True)
    return tmp_path


def follow(page: str, place: Path) -> str:
    """The output of all commands of a page; each has to end with 0."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    script = "\n".join(_BLOCK.findall(text))
    # a value or the beginning of one
    script = re.sub(r"(?<=[ =])/(?=(?:var|backup|snap|opt)/)", f"{place}/", script)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", _STUBS + script], cwd=place, env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.log"))


def offsets(log_dir: Path) -> set[tuple[str, int, int]]:
    """The newest record of each key."""
    rows = compaction.read_arrow(log_dir, view="latest", columns=["topic", "partition", "offset"]).read_all().to_pylist()
    return {(row["topic"], row["partition"], row["offset"]) for row in rows}


def test_a_full_disk_gets_space_and_keeps_what_its_policies_keep(place: Path) -> None:
    data = place / "var/lib/kafka/data"
    before = size_of(data)
    follow("disk-full.md", place)
    assert size_of(data) < before
    assert list(data.rglob("*.deleted")) == []
    kept, all_newest = offsets(data), offsets(place / "snap/data")
    assert {name for name, *_ in kept} >= {"orders", "customers", "prices"}
    assert kept <= all_newest


def test_each_night_has_a_complete_copy(place: Path) -> None:
    shown = follow("nightly-copy.md", place)
    nights = sorted((place / "backup").glob("2026-*"))
    assert [night.name for night in nights] == ["2026-11-22", "2026-11-23"]
    assert "16 logs: 16 hold" in shown
    for night in nights:
        assert offsets(night) == offsets(nights[0])
        assert size_of(night) < size_of(place / "snap/data")


def test_an_erased_person_does_not_come_back_with_a_restored_backup(place: Path) -> None:
    (place / "erased-keys.txt").write_text("customers-00009\n")
    follow("erase-from-backups.md", place)
    for log_dir in (place / "backup/kafka-1", place / "var/lib/kafka/restored"):
        keys = compaction.read_arrow(log_dir, "customers", columns="key").read_all()["key"].to_pylist()
        assert keys
        assert b"customers-00009" not in keys
    unerased = compaction.read_arrow(place / "snap/data", "customers", columns="key").read_all()["key"].to_pylist()
    assert b"customers-00009" in unerased


def test_the_size_of_a_topic_is_shown_now_and_later(place: Path) -> None:
    shown = follow("topic-size.md", place)
    assert re.search(r"^orders +bytes", shown, re.MULTILINE)
    assert "within 200.0 GiB" in shown or "within 214.7 GB" in shown
    assert (place / "size.html").stat().st_size > 10_000


def test_an_uncleanable_partition_is_named_and_compacted(place: Path) -> None:
    log = place / "opt/kafka/logs/log-cleaner.log"
    page = (ROOT / "docs/uncleanable.md").read_text(encoding="utf-8")
    (line,) = re.findall("^WARN.*", page, re.MULTILINE)
    log.write_text(_WARNING)
    follow("uncleanable.md", place)
    log.write_text(f"{_WARNING}{line}\njava.io.IOException: No space left on device\n")
    found = compaction.doctor(place / "snap/data", broker_logs=log)
    assert [Path(check.area).name for check in found.checks if "given up" in check.name] == ["orders-0"]
