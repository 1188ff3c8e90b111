"""Invariants of a disk after any run, successful or not: a line for each violation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from compaction.files.filesystem import join
from compaction.names import DELETED, LOCK
from tests.disk import FaultyFileSystem
from tests.log.broker_model import start_broker
from tests.log.logs import served
from tests.trust.scenes import LOG_DIR, OUTPUT_DIR, Ended, Kind, log_path, made

Tree = Mapping[str, bytes]


class Undisturbed(NamedTuple):
    """The state before and after an undisturbed run of a kind; records by topic: offset -> value."""

    start: Tree
    end: Tree
    records_before: Mapping[str, Mapping[int, bytes | None]]
    survivors: Mapping[str, Mapping[int, bytes | None]]


@cache
def undisturbed(kind: Kind) -> Undisturbed:
    """The run of ``kind`` without faults."""
    disk = kind.start()
    start = tree(disk)
    ended = kind.run(disk)
    assert ended.code == 0, ended
    sources = made(kind.topics)
    before = {topic: served(sources, log_path(topic)) for topic in kind.topics}
    changed = disk if kind.output_dir is None and not kind.dry_run else sources
    return Undisturbed(start, tree(disk), before, {topic: served(changed, log_path(topic)) for topic in kind.topics})


def tree(disk: FaultyFileSystem, *, deleted: bool = True) -> Tree:
    """All files: path -> bytes.

    :param deleted: include ``.deleted`` files
    """
    # a claim that could not be removed is not part of any log, and the next run takes it over; a lock file has no content
    paths = (path for path in disk.paths() if "/.compaction-run." not in path and not path.endswith(f"/{LOCK}"))
    return {path: disk.read_bytes(path) for path in paths if deleted or not path.endswith(DELETED)}


def below(files: Tree, *directories: str) -> Tree:
    """The files below some directories."""
    return {path: data for path, data in files.items() if path.startswith(tuple(f"{each}/" for each in directories))}


def after_run(kind: Kind, ended: Ended, disk: FaultyFileSystem) -> Iterator[str]:
    """Check the state that a run has left after success or failure."""
    start, end, found = undisturbed(kind).start, undisturbed(kind).end, tree(disk)
    if kind.dry_run and (changed := difference(start, found)):
        yield f"a dry run has changed {changed}"
    if kind.output_dir is not None and below(start, LOG_DIR) != below(found, LOG_DIR):
        yield "a run to another place has changed its source"
    if kind.releases_early:
        # a file that cannot be removed early remains until the next run
        end, found = (_without_deleted(files) for files in (end, found))
    if ended.code == 0 and (other := difference(end, found)):
        yield f"exit code 0, but {other}"
    for topic, status in ended.statuses.items():
        path = log_path(topic, kind.output_dir or LOG_DIR)
        other = difference(below(end, path), below(found, path))
        if other and status != "failed" and not kind.dry_run:
            yield f"{topic} is reported as done, but {other}"


def _without_deleted(files: Tree) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if not path.endswith(DELETED)}


def after_broker(kind: Kind, disk: FaultyFileSystem) -> Iterator[str]:
    """Check that a starting broker serves every survivor and no other records. Changes ``disk``."""
    wanted = undisturbed(kind)
    for topic in kind.topics:
        start_broker(disk, log_path(topic))
        yield from not_as_served(topic, served(disk, log_path(topic)), wanted)


def not_as_served(topic: str, found: Mapping[int, bytes | None], wanted: Undisturbed) -> Iterator[str]:
    """Check that every survivor is served, and no record that did not exist.

    :param found: offset -> value, as a consumer reads them
    """
    if lost := wanted.survivors[topic].items() - found.items():
        yield f"{topic} has lost {sorted(offset for offset, _ in lost)}"
    if other := found.items() - wanted.records_before[topic].items():
        yield f"{topic} has other records at {sorted(offset for offset, _ in other)}"


def after_next_run(kind: Kind, disk: FaultyFileSystem) -> Iterator[str]:
    """Check that the next run leaves the bytes of an undisturbed one; after portions the records, because segments that were
    cleaned are grouped again. Changes ``disk``."""
    ended = kind.run(disk)
    wanted = _without_deleted(undisturbed(kind).end)
    found = tree(disk, deleted=False)
    if ended.code == 2 and kind.output_dir is not None and below(found, OUTPUT_DIR):
        # the earlier run did publish, and failed after that
        wanted = {path: data for path, data in wanted.items() if not path.startswith(OUTPUT_DIR)}
        found = {path: data for path, data in found.items() if not path.startswith(OUTPUT_DIR)}
    elif ended.code != 0:
        yield f"the next run ends with {ended.code}: {ended.reason}"
    if kind.in_portions:
        for topic in kind.topics:
            if served(disk, log_path(topic)) != undisturbed(kind).survivors[topic]:
                yield f"after the next run, {topic} has other records"
    elif found != wanted:
        yield f"after the next run, {difference(wanted, found)}"
    if left := [path for path in disk.paths() if "/.compaction-run." in path]:
        yield f"after the next run, {left} are left"


def difference(wanted: Mapping[str, object], found: Mapping[str, object]) -> str:
    """The files in which two trees differ; empty if they are equal."""
    missing, new = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(path for path in wanted.keys() & found.keys() if wanted[path] != found[path])
    parts = [("missing", missing), ("new", new), ("other bytes", other)]
    short = [(what, [join(*path.split("/")[-2:]) for path in paths[:4]]) for what, paths in parts if paths]
    return "; ".join(f"{what}: {', '.join(paths)}" for what, paths in short)
