"""An ordinary run removes only what a stopped run over the same log directories has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import StorageError, UsageError
from compaction.exports.new_export import new_export
from compaction.files.filesystem import join
from compaction.files.manifest import MANIFEST, MARKER, marker
from compaction.files.mixed import MixedFileSystem
from compaction.files.object_output import CLAIM, OutputFileSystem
from compaction.files.object_store import list_directory
from compaction.output import object_publish
from compaction.output.object_publish import OwnNames, marker_of
from compaction.output.publish import Publication
from tests.files.remote_places import PLACE, begin, bucket, log, publish
from tests.output.requests import copying

__all__ = ["bucket", "log"]

SOURCE, OUT = f"{PLACE}/in", f"{PLACE}/out"


def tree(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_a_live_export_is_not_emptied(bucket: Path, log: str) -> None:
    with new_export(OUT) as export:
        export.files.mkdir(join(export.place, "topics"))
        export.write(join(export.place, "topics/one.bin"), [b"one"])
        before = tree(bucket / "out")
        with pytest.raises(UsageError, match="--output-dir is the unfinished output of an export, or of an earlier version"):
            publish(SOURCE, OUT)
        assert tree(bucket / "out") == before
    assert tree(bucket / "out") == {"topics/one.bin": b"one"}


def test_a_live_run_over_other_log_directories_is_not_emptied(bucket: Path, log: str) -> None:
    begun = Publication.begin(MixedFileSystem(), OUT, copying("/elsewhere"))
    before = tree(bucket / "out")
    with pytest.raises(UsageError, match="is the unfinished output of a run over /elsewhere; if no run is writing there"):
        publish(SOURCE, OUT)
    assert tree(bucket / "out") == before
    begun.abort()


@pytest.mark.parametrize("name", ["sheet.xlsx", "orders-0/sheet.xlsx", "reports/00000000000000000000.log"])
def test_an_object_that_no_run_has_written_is_not_removed(bucket: Path, log: str, name: str) -> None:
    begun, _ = begin(SOURCE, OUT)
    sheet = bucket / "out" / name
    sheet.parent.mkdir(exist_ok=True)
    sheet.write_bytes(b"cells")
    before = tree(bucket / "out")
    with pytest.raises(UsageError, match=f"--output-dir is an unfinished output with {name}, which no run has written; move"):
        publish(SOURCE, OUT)
    assert tree(bucket / "out") == before
    begun.abort()
    assert tree(bucket / "out").keys() == {MARKER, name}
    sheet.unlink()
    publish(SOURCE, OUT)
    assert MANIFEST in tree(bucket / "out")


def test_an_object_that_arrives_during_a_run_is_not_removed(bucket: Path, log: str) -> None:
    publication, source = begin(SOURCE, OUT)
    (bucket / "out" / "sheet.xlsx").write_bytes(b"cells")
    publication.commit(source)
    found = tree(bucket / "out")
    assert found["sheet.xlsx"] == b"cells" and MANIFEST in found and MARKER not in found


def test_a_failed_export_removes_nothing_of_others(bucket: Path) -> None:
    def fails() -> None:
        with new_export(OUT) as export:
            export.files.mkdir(join(export.place, "topics"))
            export.write(join(export.place, "topics/one.bin"), [b"one"])
            (bucket / "out" / "topics" / "sheet.xlsx").write_bytes(b"cells")
            raise StorageError("no space", path=OUT)

    with pytest.raises(StorageError, match="no space"):
        fails()
    assert tree(bucket / "out") == {"topics/sheet.xlsx": b"cells"}


def test_of_a_run_and_an_export_that_begin_at_once_only_one_goes_on(
    bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the prefix empty."""
    usual = OutputFileSystem.mkdir

    def meanwhile(self: OutputFileSystem, path: str, like: str | None = None, *, private: bool = False) -> None:
        usual(self, path, like, private=private)
        monkeypatch.setattr(OutputFileSystem, "mkdir", usual)
        (bucket / "out" / MARKER).write_bytes(marker("export"))

    monkeypatch.setattr(OutputFileSystem, "mkdir", meanwhile)
    with pytest.raises(UsageError, match="another run writes to --output-dir; let one run at a time write there"):
        Publication.begin(MixedFileSystem(), OUT, copying(SOURCE))
    assert tree(bucket / "out") == {MARKER: marker("export")}


def test_a_run_that_is_killed_before_its_marker_does_not_block_its_repetition(bucket: Path, log: str) -> None:
    (bucket / "out").mkdir()
    claim = bucket / "out" / f"{CLAIM}dead"
    claim.write_bytes(marker_of("dead", ["/elsewhere"]))
    with pytest.raises(UsageError, match="is the unfinished output of a run over /elsewhere"):
        publish(SOURCE, OUT)
    claim.write_bytes(marker_of("dead", [SOURCE]))
    publish(SOURCE, OUT)
    assert not claim.exists()


def test_a_live_replacement_over_other_log_directories_is_not_removed(bucket: Path, log: str) -> None:
    publish(SOURCE, OUT)
    staged = bucket / f"out.{32 * 'a'}.partial"
    staged.mkdir()
    (staged / MARKER).write_bytes(marker_of("other", ["/elsewhere"]))
    object_publish._remove_staged(OutputFileSystem(), OUT, [SOURCE])
    assert staged.exists()
    object_publish._remove_staged(OutputFileSystem(), OUT, ["/elsewhere"])
    assert not staged.exists()


def test_names_are_those_of_logs_of_log_directories_and_of_the_source(bucket: Path, log: str) -> None:
    (bucket / "in" / "notes.txt").write_bytes(b"")
    own = OwnNames(MixedFileSystem(), OUT, {SOURCE: OUT}, ["sub/old.bin"])
    written = ["orders-0/00000000000000000007.log", "gone-1/00000000000000000000.log.clean.a.0.part", "meta.properties",
               "notes.txt", "sub/old.bin", MANIFEST, MARKER, "_claim-1", "orders-0/partition.metadata"]  # fmt: skip
    assert own.foreign(written) == []
    others = ["sub/notes.txt", "orders-0/notes.txt", "00000000000000000000.log.txt", "a/orders/00000000000000000000.log"]
    assert own.foreign(others) == sorted(others)
    assert "notes.txt" in list_directory(SOURCE)
