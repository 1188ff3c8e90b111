"""Decides which metadata log applies to which log directory, and reads it.

The rule: candidates are the metadata logs in the log directories and those named by ``--metadata``. Of a broker with several
``log.dirs`` only one has the metadata log, so directories of one ``cluster.id`` (``meta.properties``) share it. Of several
metadata logs of a cluster the newest applies: by leader epoch, then end offset, which Raft makes a total order. If one of them
is damaged, the newest is unknown, and all directories of the cluster fail.

1. A metadata log of another ``cluster.id`` never applies to a directory that has one.
2. To a directory without ``cluster.id`` (an export) applies its own metadata log, if any; else the one named by ``--metadata``,
   if all candidates are of one cluster.
3. A metadata log without cluster id applies to its own directory; if it is named by ``--metadata`` and the only candidate, to
   all. The topic id decides (``compaction.log.settings``).
4. It is a usage error if a metadata log named by ``--metadata`` applies to none of the directories.

A broker's dynamic configuration is that of the directory's ``node.id``. Mirrors ``MetaPropertiesEnsemble``,
except that a broker refuses directories of different clusters, while a run may include several clusters.

A metadata log has the configuration of topics and brokers that the controllers have stored. The newest snapshot (``<end
offset>-<epoch>.checkpoint``) is the state at its end offset. It is read first, then the records of ``__cluster_metadata-0``
from that offset on. Earlier records, kept by a broker for days, are not applied again: the snapshot has what they set, and not
what was removed since. Missing data must not look like a setting that was never stored: the snapshot must have its footer, and
there must be no gap in offsets after it. Only the last segment may have a torn tail, as after an unclean shutdown.

Mirrors ``Snapshots``, ``RecordsSnapshotReader``, ``KafkaRaftLog`` and ``KafkaRaftClient.updateListenersProgress``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from compaction.config.resolver import NO_METADATA_LOG
from compaction.errors import CorruptLogError, LogError, UsageError
from compaction.files.filesystem import FileSystem, base_name, join, parent
from compaction.files.mixed import file_system
from compaction.files.segment_file import SegmentFile, SegmentScan
from compaction.files.text_files import read_small_text
from compaction.formats.java_text import MetaProperties, parse_meta_properties
from compaction.formats.metadata_log import CLUSTER_DEFAULT, SNAPSHOT_FOOTER, ClusterConfigs
from compaction.formats.primitives import FormatError
from compaction.names import CLUSTER_METADATA_TOPIC, LOG, META_PROPERTIES, parse_segment_file, segment_file

_HINT = "restore it; a broker does not start without it"
METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_LOG_HINT = "restore it, or use a copy without it and give the configuration by --set or --config"
_SNAPSHOT = re.compile(r"(?P<end>\d{20})-(?P<epoch>\d{10})\.checkpoint")


class Position(NamedTuple):
    """The end of a metadata log. Of two logs of one cluster the greater is newer, as in a Raft election."""

    epoch: int
    end_offset: int


def metadata_log_in(fs: FileSystem, path: str) -> str | None:
    """``path`` itself if it is a metadata log, or the metadata log in the log directory ``path``; ``None`` if there is none."""
    log = path.rstrip("/") if base_name(path.rstrip("/")) == METADATA_LOG else join(path, METADATA_LOG)
    status = fs.stat(log)
    return log if status is not None and status.is_dir else None


class MetadataLog:
    """The configuration in the metadata log in the directory ``path``, read in the order of its files.

    :ivar position: the end of the data read
    :raises CorruptLogError: a file is damaged or missing
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs, self.path = fs, path
        self.configs = ClusterConfigs()
        self.position = Position(0, 0)
        names = fs.listdir(path)
        for snapshot in list(filter(None, map(_SNAPSHOT.fullmatch, names)))[-1:]:
            self._read_snapshot(snapshot)
        files = map(parse_segment_file, names)
        bases = [file.base_offset for file in files if file is not None and file.kind == LOG and not file.suffix]
        for base_offset, end_offset in zip_longest(bases, bases[1:]):
            if end_offset is None or end_offset > self.position.end_offset:
                self._read_segment(base_offset, segment_file(base_offset, LOG))

    def _read_snapshot(self, name: re.Match[str]) -> None:
        scan, _, last_control = self._apply(name[0])
        if not scan.complete or last_control != SNAPSHOT_FOOTER:
            raise self._damaged(name[0], "snapshot ends without its footer", scan.position)
        self.position = Position(int(name["epoch"]), int(name["end"]))

    def _read_segment(self, base_offset: int, name: str) -> None:
        if base_offset > self.position.end_offset:
            message = f"offsets {self.position.end_offset} to {base_offset - 1} are missing before this segment"
            raise self._damaged(name, message, 0)
        scan, epoch, _ = self._apply(name, self.position.end_offset)
        end = base_offset if scan.next_offset is None else scan.next_offset
        self.position = Position(max(epoch, self.position.epoch), max(end, self.position.end_offset))

    def _apply(self, name: str, start_offset: int = 0) -> tuple[SegmentScan, int, int]:
        """Replay a file from an offset on; returns its scan, and leader epoch and control type of its last batch (-1 for
        none)."""
        file = SegmentFile(self._fs, join(self.path, name))
        scan, epoch, control = file.scan(check_crc=True), -1, -1
        for rows in scan:
            epoch, control = int(rows["leader_epoch"][-1]), int(rows["control_type"][-1])
        damage = scan.damage()
        if damage is not None:
            raise self._damaged(name, damage, scan.position)
        try:
            self.configs.read(file.data[: scan.position].tobytes(), start_offset)
        except FormatError as error:
            raise CorruptLogError(str(error), path=file.path, hint=_LOG_HINT) from error
        return scan, epoch, control

    def _damaged(self, name: str, message: str, position: int) -> CorruptLogError:
        return CorruptLogError(message, path=join(self.path, name), position=position, hint=_LOG_HINT)


@dataclass(frozen=True)
class StoredConfig:
    """The stored configuration for one log directory; empty if no metadata log applies.

    ``path`` is the metadata log, ``topics`` the configuration of each of its topics, ``topic_ids`` their ids, ``features`` the
    levels of the cluster's features. ``note`` identifies the log in reports, empty for the directory's own. ``unknown`` is the
    reason that a topic is not in ``topics``.
    """

    path: str = ""
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    unknown: str = NO_METADATA_LOG


@dataclass(frozen=True)
class _Candidate:
    """A candidate: ``home`` is the directory that contains it, ``named`` whether ``--metadata`` names it."""

    path: str
    home: str
    fs: FileSystem
    cluster_id: str | None
    named: bool

    @property
    def cluster(self) -> tuple[str, str]:
        """Equal for metadata logs of one cluster; unique for one without cluster id."""
        return ("id", self.cluster_id) if self.cluster_id is not None else ("path", self.path)


class MetadataSources:
    """The metadata logs of a run.

    :param fs: the file system of the log directories
    :param log_dirs: all log directories of the run
    :param metadata_dirs: the values of ``--metadata``: log directories, or metadata logs
    :raises UsageError: a named one is missing, or applies to none of the directories
    """

    def __init__(self, fs: FileSystem, log_dirs: Iterable[str], metadata_dirs: Sequence[str] = ()) -> None:
        self._read: dict[str, MetadataLog | LogError] = {}
        self._identities: dict[str, MetaProperties | LogError] = {log_dir: read_identity(fs, log_dir) for log_dir in log_dirs}
        own_logs = (_candidate(fs, log_dir, identity) for log_dir, identity in self._identities.items())
        candidates = {candidate.path: candidate for candidate in own_logs if candidate is not None}
        for path in metadata_dirs:
            named = _named(path)
            candidates[named.path] = named
        self._candidates = tuple(candidates.values())
        for candidate in self._candidates:
            if candidate.named:
                self._require_used(candidate)

    def of(self, log_dir: str) -> StoredConfig:
        """The stored configuration for one of the log directories.

        :raises LogError: the metadata log, another one of its cluster, or ``meta.properties`` is damaged
        """
        if not self._candidates:
            return StoredConfig()
        identity = self._identities[log_dir]
        if isinstance(identity, LogError):
            raise identity
        group = self._group(log_dir, identity.cluster_id)
        if not group:
            return StoredConfig(unknown=self._why_none(identity.cluster_id))
        logs = [(self._log(candidate), candidate) for candidate in group]
        log, candidate = max(logs, key=lambda pair: (pair[0].position, pair[1].home == log_dir))
        node = CLUSTER_DEFAULT if identity.node_id is None else str(identity.node_id)
        return _stored(log, node, _note(candidate, log_dir, identity))

    def _group(self, log_dir: str, cluster_id: str | None) -> list[_Candidate]:
        """The metadata logs that apply to a directory: all of one cluster, or none."""
        own = [candidate for candidate in self._candidates if candidate.home == log_dir]
        if cluster_id is not None:
            group = [candidate for candidate in self._candidates if candidate.cluster_id == cluster_id]
            nameless = (candidate for candidate in self._candidates if candidate.cluster_id is None)
            return group or [candidate for candidate in nameless if self._is_only(candidate)]
        return own or [candidate for candidate in self._candidates if self._is_only(candidate)]

    def _is_only(self, candidate: _Candidate) -> bool:
        """Whether all candidates are of one cluster, and ``--metadata`` names one of them."""
        same = all(other.cluster == candidate.cluster for other in self._candidates)
        return same and any(other.named for other in self._candidates)

    def _log(self, candidate: _Candidate) -> MetadataLog:
        if candidate.path not in self._read:
            try:
                self._read[candidate.path] = MetadataLog(candidate.fs, candidate.path)
            except LogError as error:
                self._read[candidate.path] = error
        log = self._read[candidate.path]
        if isinstance(log, LogError):
            raise log
        return log

    def _why_none(self, cluster_id: str | None) -> str:
        if cluster_id is None:
            return "its directory has no cluster.id, and --metadata does not name the only metadata log of this call"
        first = self._candidates[0]
        return f"its directory is of {_cluster(cluster_id)}, the metadata log {first.path} of {_cluster(first.cluster_id)}"

    def _require_used(self, named: _Candidate) -> None:
        for log_dir, identity in self._identities.items():
            # a directory with damaged meta.properties fails by itself
            if isinstance(identity, LogError) or named in self._group(log_dir, identity.cluster_id):
                return
        for log_dir, identity in self._identities.items():
            if isinstance(identity, MetaProperties):
                log_cluster, dir_cluster = _cluster(named.cluster_id), _cluster(identity.cluster_id)
                message = f"--metadata: this metadata log is of {log_cluster}, the log directory {log_dir} of {dir_cluster}"
                raise UsageError(message, path=named.path, hint="name the metadata log of the cluster that the directory is of")


def _candidate(fs: FileSystem, log_dir: str, identity: MetaProperties | LogError) -> _Candidate | None:
    path = metadata_log_in(fs, log_dir)
    if path is None:
        return None
    cluster_id = None if isinstance(identity, LogError) else identity.cluster_id
    return _Candidate(path, log_dir, fs, cluster_id, named=False)


def _named(path: str) -> _Candidate:
    """The metadata log that ``--metadata`` names."""
    fs = file_system([path])
    log = require_metadata_log(fs, path)
    identity = read_identity(fs, parent(log))
    if isinstance(identity, LogError):
        raise UsageError(identity.message, path=identity.path, hint="restore it, or name the metadata log of another node")
    return _Candidate(log, parent(log), fs, identity.cluster_id, named=True)


def require_metadata_log(fs: FileSystem, path: str) -> str:
    """The metadata log at or in ``path``.

    :raises UsageError: there is none
    """
    log = metadata_log_in(fs, path)
    if log is None:
        hint = "name a log directory that holds __cluster_metadata-0, or that directory itself"
        raise UsageError("--metadata: there is no metadata log here", path=path, hint=hint)
    return log


def read_identity(fs: FileSystem, log_dir: str) -> MetaProperties | LogError:
    """The ``meta.properties`` of a log directory, empty without one, or why they cannot be read."""
    path = join(log_dir, META_PROPERTIES)
    try:
        if fs.stat(path) is None:
            return MetaProperties()
        return parse_meta_properties(read_small_text(fs, path, _HINT, "latin-1"), path)
    except LogError as error:
        return error


def _cluster(cluster_id: str | None) -> str:
    return "an unknown cluster (no cluster.id)" if cluster_id is None else f"cluster {cluster_id}"


def _note(candidate: _Candidate, log_dir: str, identity: MetaProperties) -> str:
    if candidate.home == log_dir:
        return ""
    if identity.cluster_id is None or candidate.cluster_id is None:
        return f" {candidate.path}, named by --metadata and not known to be of the same cluster"
    return f" {candidate.path}"


def _stored(log: MetadataLog, node: str, note: str) -> StoredConfig:
    configs = log.configs
    cluster, own = configs.brokers.get(CLUSTER_DEFAULT, {}), configs.brokers.get(node, {})
    return StoredConfig(
        path=log.path,
        topics={name: configs.topics.get(name, {}) for name in configs.topic_ids},
        topic_ids=configs.topic_ids,
        broker={**cluster, **own},
        features=configs.features,
        note=note,
        unknown=f"the metadata log {log.path} does not know the topic",
    )
