"""Publishing to a store: an output is complete, with a manifest of its objects, or known to be unfinished; an ordinary run
removes only what a stopped run over the same log directories has written."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from compaction.errors import CompactionError, CorruptLogError, StorageError, UsageError
from compaction.exports.new_export import new_export, require_empty
from compaction.files.contents import FileDigest
from compaction.files.filesystem import join
from compaction.files.manifest import MANIFEST, MARKER, Manifest, Marker
from compaction.files.mixed import CLAIM, MixedFileSystem, OutputFileSystem, RemoteFileSystem, open_sequential, require_finished
from compaction.files.object_store import delete_object, list_directory, objects_below, read_whole
from compaction.files.uri import parse_uri
from compaction.names import LOG, TopicPartition
from compaction.output import object_publish
from compaction.output.object_publish import ObjectTarget, marker_of
from compaction.output.publish import Publication
from compaction.output.swap import SwapGroup
from tests.files.remote_places import PLACE, TaggingStore, begin, bucket, copying, log, publish
from tests.log.logs import location
from tests.object_store.fixtures import files

__all__ = ["bucket", "log"]

SOURCE, OUT = f"{PLACE}/in", f"{PLACE}/out"
FIRST = f"orders-0/{0:020d}.log"
REPLACE: dict[str, Any] = {"call": {"as_of_ms": 2}, "replace": True}


def manifest_of(out: Path) -> Manifest:
    return Manifest.parse((out / MANIFEST).read_bytes(), "")


@pytest.mark.parametrize("copied", [False, True])
def test_the_manifest_lists_what_was_written_with_size_etag_and_hash(
    bucket: Path, log: str, tmp_path: Path, copied: bool
) -> None:
    shutil.copytree(bucket / "in", tmp_path / "in")
    publish(str(tmp_path / "in") if copied else SOURCE, OUT)
    manifest, found = manifest_of(bucket / "out"), files(bucket / "out")
    assert (manifest.place, len(manifest.run or "")) == (OUT, 32)
    assert {entry.path for entry in manifest.files} == found.keys() - {MANIFEST}
    for entry in manifest.files:
        data = found[entry.path]
        assert (entry.size, bool(entry.etag), entry.xxh3_128) == (len(data), True, xxhash.xxh3_128_hexdigest(data)), entry
    far = RemoteFileSystem()
    stat = far.stat(f"{OUT}/{FIRST}")
    assert MANIFEST not in far.listdir(OUT) and stat is not None and stat.mtime_ns == 7 * 10**9


def test_copies_keep_the_hashes_of_the_sources_manifest(bucket: Path, log: str) -> None:
    publish(SOURCE, f"{PLACE}/first")
    publish(f"{PLACE}/first", f"{PLACE}/second")
    first, second = ({entry.path: entry for entry in manifest_of(bucket / name).files} for name in ("first", "second"))
    assert first[FIRST] == second[FIRST]


def test_a_task_reads_back_its_part_of_an_unfinished_output(bucket: Path, log: str) -> None:
    publication = Publication(MixedFileSystem(), OUT, copying(SOURCE))
    final = f"{publication.log_path(location(SOURCE))}/{0:020d}.log"
    for name in (FIRST, f"{FIRST}.clean.one"):
        (bucket / "out" / name).write_bytes(b"0123456789")
    buffer = memoryview(bytearray(10))
    for path, checked in ((f"{final}.clean.one", True), (f"{final}.clean.one", False), (final, False)):
        with closing(open_sequential(path, 0, 10, checked=checked)) as reader:
            assert reader.pread(buffer, 0) == 10
    with closing(open_sequential(final, 0, 10)) as reader, pytest.raises(StorageError, match="unfinished"):
        reader.pread(buffer, 0)


@pytest.mark.parametrize("aborted", [False, True])
def test_an_unfinished_output_is_no_source_and_the_next_run_removes_it(
    bucket: Path, log: str, aborted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    publication, source = begin(SOURCE, OUT)
    if aborted:
        publication.abort()
        assert files(bucket / "out").keys() == {MARKER}
        assert f"keeping {MARKER}, as tasks may still write here; the next run into this directory cleans up" in caplog.text
    # uploads of killed tasks, also of a log that the source does not have
    late = [bucket / "out" / f"{log}/{0:020d}.log.clean.two" for log in ("orders-0", "gone-7")]
    for path in late:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"late")
    with pytest.raises(UsageError, match="unfinished"):
        require_finished(OUT)
    for look in (RemoteFileSystem().listdir, lambda path: RemoteFileSystem().stat(f"{path}/{FIRST}")):
        with pytest.raises(StorageError, match="unfinished"):
            look(OUT)
    publish(SOURCE, OUT)
    assert not any(path.exists() for path in late)
    # if the first run is still active, the later one wins
    with pytest.raises(StorageError, match="another run writes to this directory"):
        publication.commit(source)
    require_finished(OUT)
    with pytest.raises(UsageError, match="exists and is not empty"):
        publish(SOURCE, OUT)


def test_an_upload_of_a_killed_run_during_the_next_commit_is_removed(
    bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication, source = begin(SOURCE, OUT)
    arrived: list[Path] = []

    def listed(path: str) -> object:
        # an upload arrives before each listing of the commit
        arrived.append(bucket / "out" / f"{FIRST}.clean.{len(arrived)}")
        arrived[-1].write_bytes(b"late")
        return objects_below(path)

    monkeypatch.setattr(object_publish, "objects_below", listed)
    publication.commit(source)
    assert len(arrived) == 2
    assert not [each for each in arrived if each.exists()]


@pytest.mark.parametrize("kind", [LOG, ".timeindex"])
def test_a_store_that_loses_bytes_fails_the_writer(bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(TaggingStore, "losing", (f"{kind}.clean.one",))
    with pytest.raises(StorageError, match=r"has \d+ bytes in the store, \d+ were written"):
        begin(SOURCE, OUT)


def test_a_tasks_output_that_is_truncated_before_its_rename_fails_the_log(bucket: Path, log: str) -> None:
    publication = Publication(MixedFileSystem(), OUT, copying(SOURCE))
    here = location(SOURCE)
    publication.log_path(here)
    (bucket / "out" / f"{FIRST}.clean.one").write_bytes(b"01234")
    group = SwapGroup((0,), ".clean.one", 0, (FileDigest(LOG, 10, ""),))
    with pytest.raises(StorageError, match="has 5 bytes in the store, 10 were written"):
        publication.add_log(MixedFileSystem(), here, [group], (), end_offset=1)
    # it is not published in part
    publication.leave_out(here)
    assert not [name for name in files(bucket / "out") if name.startswith("orders-0")]
    # and an output of unknown content is not published
    with pytest.raises(StorageError, match="size and content of this run's output are unknown"):
        publication.add_log(MixedFileSystem(), here, [SwapGroup((0,), ".clean.one")], (), end_offset=1)


def test_a_failed_log_that_cannot_be_removed_is_not_part_of_the_output(
    bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication, source = begin(SOURCE, OUT)

    def refused(path: str) -> None:
        raise StorageError("cannot remove", path=path)

    with monkeypatch.context() as meanwhile, pytest.raises(StorageError, match="cannot remove"):
        meanwhile.setattr(publication._fs, "remove_tree", refused)
        publication.leave_out(location(SOURCE))
    assert (bucket / "out" / FIRST).exists()
    publication.commit(source)
    assert not [name for name in files(bucket / "out") if name.startswith("orders-0")]


def test_a_manifest_that_is_read_back_differently_fails_the_run(
    bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication, source = begin(SOURCE, OUT)

    def turned(path: str) -> bytes:
        data = read_whole(path)
        return data[:-3] + b"?" + data[-2:] if path.endswith(MANIFEST) else data

    monkeypatch.setattr(object_publish, "read_whole", turned)
    with pytest.raises(StorageError, match="is not as it was written"):
        publication.commit(source)
    publication.abort()
    assert files(bucket / "out").keys() == {MARKER}


def test_a_manifest_beside_the_marker_of_another_run_is_unfinished(bucket: Path, log: str) -> None:
    publish(SOURCE, OUT)
    # the run that wrote the manifest was killed before it removed its marker
    (bucket / "out" / MARKER).write_bytes(Marker(manifest_of(bucket / "out").run).to_json())
    require_finished(OUT)
    with pytest.raises(UsageError, match="exists and is not empty"):
        Publication(MixedFileSystem(), OUT, copying(SOURCE))
    (bucket / "out" / MARKER).write_bytes(marker_of("another", [SOURCE]))
    with pytest.raises(UsageError, match="unfinished"):
        require_finished(OUT)
    # a malformed manifest may belong to a finished output
    data = (bucket / "out" / MANIFEST).read_bytes()
    (bucket / "out" / MANIFEST).write_bytes(data[:-5])
    with pytest.raises(UsageError, match="exists and is not empty"):
        Publication(MixedFileSystem(), OUT, copying(SOURCE))
    (bucket / "out" / MANIFEST).write_bytes(data)
    publish(SOURCE, OUT)
    require_finished(OUT)


def test_an_output_of_format_1_beside_a_marker_is_not_removed(bucket: Path, log: str) -> None:
    publish(SOURCE, OUT)
    files = json.loads((bucket / "out" / MANIFEST).read_bytes())["files"]
    old = [{name: value for name, value in each.items() if name != "xxh3_128"} for each in files]
    (bucket / "out" / MANIFEST).write_text(json.dumps({"format": 1, "files": old}))
    require_finished(OUT)
    (bucket / "out" / MARKER).write_bytes(Marker("somebody").to_json())
    with pytest.raises(UsageError, match=f"or remove {MARKER} if no run is writing it"):
        require_finished(OUT)
    with pytest.raises(UsageError, match="exists and is not empty"):
        Publication(MixedFileSystem(), OUT, copying(SOURCE))


def test_a_source_that_differs_from_its_manifest_is_not_copied(bucket: Path, log: str) -> None:
    publish(SOURCE, f"{PLACE}/first")
    publication = Publication(MixedFileSystem(), OUT, copying(f"{PLACE}/first"))
    source, path = MixedFileSystem(), bucket / "first" / f"orders-0/{130:020d}.log"
    source.listdir(f"{PLACE}/first/orders-0")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match="has ETag"):
        publication.add_log(source, location(f"{PLACE}/first"), [], (), end_offset=None)
    assert f"orders-0/{130:020d}.log" not in files(bucket / "out")
    publication.leave_out(location(f"{PLACE}/first"))
    assert not [name for name in files(bucket / "out") if name.startswith("orders-0")]


class Refusing:
    """Lets a store refuse every change below a URI after the first ``allowed``."""

    def __init__(self, place: str, allowed: int) -> None:
        self._place, self._left = f"{place}/", allowed

    def after(self, usual: Callable[..., Any], at: int) -> Callable[..., Any]:
        """``usual``, whose argument ``at`` is the URI that is changed."""

        def changed(*given: Any, **more: Any) -> Any:
            if given[at].startswith(self._place):
                self._left -= 1
                if self._left < 0:
                    raise StorageError("refused by the test", path=given[at])
            return usual(*given, **more)

        return changed


def is_whole(out: Path) -> bool:
    """Whether all objects are those of the manifest."""
    entries = manifest_of(out).files
    found = (hashlib.md5((out / entry.path).read_bytes(), usedforsecurity=False).hexdigest() for entry in entries)
    whole = [entry.etag for entry in entries] == list(found)
    return whole and files(out).keys() == {MANIFEST, *(entry.path for entry in entries)}


def test_a_replacement_that_is_interrupted_anywhere_leaves_a_whole_output_or_is_completed_by_the_next_run(
    bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[str] = []
    while "replaced" not in outcomes:
        place, out = f"{OUT}{len(outcomes)}", bucket / f"out{len(outcomes)}"
        publish(SOURCE, place)
        first = manifest_of(out).run
        publication, source = begin(SOURCE, place, **REPLACE)
        refusing = Refusing(place, len(outcomes))
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(OutputFileSystem, "copy_within", refusing.after(OutputFileSystem.copy_within, 2))
            meanwhile.setattr(OutputFileSystem, "write_file", refusing.after(OutputFileSystem.write_file, 1))
            meanwhile.setattr(object_publish, "delete_object", refusing.after(delete_object, 0))
            with suppress(StorageError):
                publication.commit(source)
            publication.abort()
        written = manifest_of(out).run if (out / MANIFEST).exists() else None
        if MARKER in files(out) and Marker.parse((out / MARKER).read_bytes()).run != written:
            outcomes.append("unfinished")
            with pytest.raises(UsageError, match="unfinished"):
                require_finished(place)
            # any run with this target completes it, and then finds a finished output
            with pytest.raises(UsageError, match="exists and is not empty"):
                begin(SOURCE, place)
            assert manifest_of(out).run != first
            assert not list(bucket.glob(f"{out.name}.*"))
        else:
            outcomes.append("kept" if manifest_of(out).run == first else "replaced")
        (out / MARKER).unlink(missing_ok=True)
        require_finished(place)
        assert is_whole(out)
    assert outcomes[0] == "kept"
    assert set(outcomes[1:-1]) == {"unfinished"}


def test_a_prefix_that_is_no_output_is_not_replaced(bucket: Path, log: str) -> None:
    (bucket / "theirs").mkdir()
    (bucket / "theirs" / "data.parquet").write_bytes(b"data")
    with pytest.raises(UsageError, match="this is not a finished output: it has no _manifest.json"):
        begin(SOURCE, f"{PLACE}/theirs", **REPLACE)
    assert files(bucket / "theirs") == {"data.parquet": b"data"}


def test_a_marker_that_names_something_else_is_not_believed(bucket: Path, log: str) -> None:
    publish(SOURCE, OUT)
    publish(SOURCE, f"{PLACE}/other")
    for staged in (f"{PLACE}/other", f"{OUT}.{32 * 'a'}.partial"):
        (bucket / "out" / MARKER).write_bytes(Marker("somebody", staged, [SOURCE]).to_json())
        with pytest.raises(UsageError, match="unfinished"):
            require_finished(OUT)
        publish(SOURCE, OUT)
    assert is_whole(bucket / "other")
    assert is_whole(bucket / "out")


def test_an_output_that_was_copied_elsewhere_is_replaced_by_its_contents(bucket: Path, log: str, tmp_path: Path) -> None:
    """A copy may have other ETags."""
    shutil.copytree(bucket / "in", tmp_path / "in")
    source = str(tmp_path / "in")
    publish(source, f"{PLACE}/first")
    written = manifest_of(bucket / "first")
    entries = (replace(entry, etag="another") for entry in written.files)
    shutil.copytree(bucket / "first", bucket / "out")
    (bucket / "out" / MANIFEST).write_bytes(replace(written, files=tuple(entries)).to_json())
    (bucket / "out" / FIRST).write_bytes((bucket / "first" / FIRST).read_bytes()[:-1] + b"?")
    with pytest.raises(UsageError, match=f"{FIRST} has other contents"):
        begin(source, OUT, **REPLACE)
    (bucket / "out" / FIRST).write_bytes((bucket / "first" / FIRST).read_bytes())
    publish(source, OUT, **REPLACE)
    assert manifest_of(bucket / "out").run != written.run


@pytest.mark.parametrize("earlier", [False, True])
def test_an_output_that_is_checked_appears_after_its_check(bucket: Path, log: str, earlier: bool) -> None:
    if earlier:
        publish(SOURCE, OUT)
    before = files(bucket / "out").keys()
    seen: list[str] = []

    def check(log_dir: str, copy: str, logs: frozenset[TopicPartition]) -> None:
        assert (log_dir, list(logs)) == (SOURCE, [location(SOURCE).topic_partition])
        # the certifier reads it, and nobody finds it under its own name
        assert MixedFileSystem().stat(f"{copy}/{FIRST}") is not None
        assert files(bucket / "out").keys() - {MARKER} == before
        seen.append(copy)
        if len(seen) == 1:
            raise CompactionError("bad")

    options: dict[str, Any] = {"call": {}, "replace": True, "check_copy": check}
    publication, source = begin(SOURCE, OUT, **options)
    with pytest.raises(CompactionError, match="bad"):
        publication.commit(source)
    publication.abort()
    assert files(bucket / "out").keys() == before
    publication, source = begin(SOURCE, OUT, **options)
    publication.commit(source)
    require_finished(OUT)
    assert {entry.path for entry in manifest_of(bucket / "out").files} == files(bucket / "out").keys() - {MANIFEST}
    # of neither attempt anything is left beside it
    assert len(seen) == 2 and not [name for name in files(bucket) if ".partial" in name and not name.endswith(MARKER)]


def test_a_run_that_is_killed_during_its_check_is_taken_over(bucket: Path, log: str) -> None:
    def check(log_dir: str, copy: str, logs: frozenset[TopicPartition]) -> None:
        raise SystemExit

    publication, source = begin(SOURCE, OUT, call={}, check_copy=check)
    with pytest.raises(SystemExit):
        publication.commit(source)
    with pytest.raises(UsageError, match="unfinished"):
        require_finished(OUT)
    publication, source = begin(SOURCE, OUT, call={}, check_copy=lambda log_dir, copy, logs: None)
    publication.commit(source)
    require_finished(OUT)
    assert not [name for name in files(bucket) if ".partial" in name]


def test_a_live_export_is_neither_read_nor_emptied(bucket: Path, log: str) -> None:
    with new_export(OUT) as export:
        export.files.mkdir(join(export.place, "topics"))
        export.write(join(export.place, "topics/one.bin"), [b"one"])
        before = files(bucket / "out")
        with pytest.raises(UsageError, match="--output-dir is the unfinished output of an export, or of an earlier version"):
            publish(SOURCE, OUT)
        with pytest.raises(UsageError, match="--output-dir exists and is not empty"):
            require_empty(OUT)
        with pytest.raises(StorageError, match="unfinished"):
            MixedFileSystem().listdir(parse_uri(f"aiven+{OUT}", "--log-dir"))
        assert files(bucket / "out") == before
    assert files(bucket / "out") == {"topics/one.bin": b"one"}


def test_a_live_run_over_other_log_directories_is_not_emptied(bucket: Path, log: str) -> None:
    begun = Publication(MixedFileSystem(), OUT, copying("/elsewhere"))
    before = files(bucket / "out")
    with pytest.raises(UsageError, match="is the unfinished output of a run over /elsewhere; if no run is writing there"):
        publish(SOURCE, OUT)
    assert files(bucket / "out") == before
    # no task may still write
    begun.abort()
    assert files(bucket / "out") == {}
    require_finished(OUT)


@pytest.mark.parametrize("name", ["sheet.xlsx", "orders-0/sheet.xlsx", "reports/00000000000000000000.log"])
def test_an_object_that_no_run_has_written_is_not_removed(bucket: Path, log: str, name: str) -> None:
    begun, _ = begin(SOURCE, OUT)
    sheet = bucket / "out" / name
    sheet.parent.mkdir(exist_ok=True)
    sheet.write_bytes(b"cells")
    before = files(bucket / "out")
    with pytest.raises(UsageError, match=f"--output-dir is an unfinished output with {name}, which no run has written; move"):
        publish(SOURCE, OUT)
    assert files(bucket / "out") == before
    begun.abort()
    assert files(bucket / "out").keys() == {MARKER, name}
    sheet.unlink()
    publish(SOURCE, OUT)
    assert MANIFEST in files(bucket / "out")


def test_an_object_that_arrives_during_a_run_is_not_removed(bucket: Path, log: str) -> None:
    publication, source = begin(SOURCE, OUT)
    (bucket / "out" / "sheet.xlsx").write_bytes(b"cells")
    publication.commit(source)
    found = files(bucket / "out")
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
    assert files(bucket / "out") == {"topics/sheet.xlsx": b"cells"}


def test_of_a_run_and_an_export_that_begin_at_once_only_one_goes_on(
    bucket: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the prefix empty."""
    usual = OutputFileSystem.mkdir

    def meanwhile(self: OutputFileSystem, path: str, like: str | None = None, *, private: bool = False) -> None:
        usual(self, path, like, private=private)
        monkeypatch.setattr(OutputFileSystem, "mkdir", usual)
        (bucket / "out" / MARKER).write_bytes(Marker("export").to_json())

    monkeypatch.setattr(OutputFileSystem, "mkdir", meanwhile)
    with pytest.raises(UsageError, match="another run writes to --output-dir; let one run at a time write there"):
        Publication(MixedFileSystem(), OUT, copying(SOURCE))
    assert files(bucket / "out") == {MARKER: Marker("export").to_json()}


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
    for name in ("notes.txt", "orders-0/plan.txt"):
        (bucket / "in" / name).write_bytes(b"")
    own = ObjectTarget(MixedFileSystem(), OUT, "", [SOURCE], known=["sub/old.bin"])
    written = ["orders-0/00000000000000000007.log", "gone-1/00000000000000000000.log.clean.a.0.part", "meta.properties",
               "notes.txt", "orders-0/plan.txt", "sub/old.bin", MANIFEST, MARKER, "_claim-1",
               "orders-0/partition.metadata"]  # fmt: skip
    assert own.foreign(written) == []
    others = ["sub/notes.txt", "orders-0/notes.txt", "00000000000000000000.log.txt", "a/orders/00000000000000000000.log"]
    assert own.foreign(others) == sorted(others)
    assert "notes.txt" in list_directory(SOURCE)
