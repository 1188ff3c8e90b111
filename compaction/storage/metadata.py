"""Topic and broker configuration as the broker itself had stored it: the KRaft metadata log of its log directory.

The newest snapshot (``<offset>-<epoch>.checkpoint``) is read first, then every segment of ``__cluster_metadata-0``; a later
record wins, so that records older than the snapshot change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compaction.errors import CorruptLogError
from compaction.formats.errors import FormatError
from compaction.formats.metadata_log import CLUSTER_DEFAULT, read_cluster_configs
from compaction.formats.properties import parse_meta_properties
from compaction.names import CLUSTER_METADATA_TOPIC, LOG, META_PROPERTIES, parse_segment_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.ranges import view
from compaction.storage.scan import SegmentScan
from compaction.storage.textfiles import read_small_text

_HINT = "restore it, or work on a copy without it and give the configuration by --set or --config"
_META_HINT = "restore it; a broker does not start without it"
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")

Configs = dict[str, dict[str, str]]


def read_metadata(fs: FileSystem, log_dir: str) -> tuple[Configs, dict[str, str]]:
    """``(configuration of each topic, dynamic configuration of this broker)``; empty where there is no metadata log.

    :raises CorruptLogError: the metadata log is there but cannot be read
    """
    path = join(log_dir, f"{CLUSTER_METADATA_TOPIC}-0")
    if fs.stat(path) is None:
        return {}, {}
    try:
        found = read_cluster_configs(_buffers(fs, path))
    except FormatError as error:
        raise CorruptLogError(str(error), path=path, hint=_HINT) from error
    node = _node_id(fs, log_dir)
    return found.topics, {**found.brokers.get(CLUSTER_DEFAULT, {}), **(found.brokers.get(node, {}) if node else {})}


def _buffers(fs: FileSystem, path: str) -> Iterator[bytes]:
    names = fs.listdir(path)
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    parsed = [(name, parse_segment_file(name)) for name in names]
    logs = [name for name, parts in parsed if parts is not None and parts.kind == LOG and not parts.suffix]
    for name in [*snapshots[-1:], *sorted(logs)]:
        data = view(fs, join(path, name))
        scan = SegmentScan(data, check_crc=True).finish()
        # a torn tail after an unclean stop is no news; what lies behind any other damage would be missed
        damage = scan.damage()
        if damage is not None:
            raise CorruptLogError(damage, path=join(path, name), position=scan.position, hint=_HINT)
        yield data[: scan.position].tobytes()


def _node_id(fs: FileSystem, log_dir: str) -> str | None:
    path = join(log_dir, META_PROPERTIES)
    if fs.stat(path) is None:
        return None
    found = parse_meta_properties(read_small_text(fs, path, _META_HINT, "latin-1"), path)
    return None if found.node_id is None else str(found.node_id)
