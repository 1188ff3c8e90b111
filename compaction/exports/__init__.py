"""The layouts of exports, each a plug-in: an :class:`ExportLayout` with a reader and a writer, in a module of any package.

A package declares its layouts as entry points of the group ``compaction.export_layouts``: the name, which addresses begin with,
and ``module:attribute``. Those of this package are in ``OWN``, because a zip on Spark's executors has no metadata. No other
package takes their names. A module is imported when a path of its layout is first used, and any exception of another package's
is a usage error.

A reader only lists what is stored (:class:`ExportReader`). ``layout_view`` selects the segments that form a log, and presents
them as a log directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import EntryPoint, distributions
from typing import Any, NamedTuple, Protocol

from compaction.errors import CompactionError, UsageError
from compaction.files.filesystem import File, FileRange, FileStat, ReadableFileSystem
from compaction.files.uri import LAYOUT_NAME
from compaction.formats.checkpoints import EpochEntry
from compaction.names import TopicPartition

GROUP = "compaction.export_layouts"
#: the layouts of this package by name, as an entry point gives them
OWN = {
    name: EntryPoint(name, f"compaction.exports.{name.replace('-', '_')}:LAYOUT", GROUP)
    for name in ("aiven", "backup", "local-tiered")
}
#: what is accepted as lost: what the format does not have; also records that are not committed
FORMAT, UNCOMMITTED = "format", "uncommitted"
#: why tiered storage is never changed in place
METADATA_ELSEWHERE = "the cluster's own metadata of these objects would no longer be true"

#: the content of a small file, read when it is needed
Load = Callable[[], bytes]


class LogFile(NamedTuple):
    """A file of a log: ``size`` bytes in a range of a stored object, or loaded as a whole.

    The path of a range is that of an object which has these bytes, or is in the layout (``ExportReader.open``) if the object is
    encoded otherwise.
    """

    size: int
    mtime_ns: int
    content: FileRange | Load

    @classmethod
    def of(cls, path: str, stat: FileStat) -> LogFile:
        """A whole file."""
        return cls(stat.size, stat.mtime_ns, FileRange(path, 0, stat.size))

    @classmethod
    def in_memory(cls, data: bytes, mtime_ns: int) -> LogFile:
        return cls(len(data), mtime_ns, partial(bytes, data))

    def load(self) -> bytes | None:
        """The content, unless it is a range."""
        return None if isinstance(self.content, FileRange) else self.content()


@dataclass(frozen=True)
class StoredSegment:
    """One stored copy of a segment.

    :param path: the object that names it in messages
    :param end_offset: exclusive
    :param files: by kind: ``.log`` always; ``.snapshot`` has the producers at the end offset
    :param epochs: the leader epochs of its batches, ascending; the first starts at ``start_offset``. Empty if unknown
    :param lineage: reads the leader epochs of the log up to its end, as its broker knew them
    :param written_ms: when it was stored; of two copies, the later one
    :param end_is_stated: the end offset is what a manifest says: it is compared with the batches if the segment is used
    :param name: ``<start offset>-<segment id>``, by which the cluster's metadata knows it, in layouts of tiered storage
    """

    path: str
    start_offset: int
    end_offset: int
    files: Mapping[str, LogFile]
    epochs: tuple[EpochEntry, ...] = ()
    lineage: Callable[[], Sequence[EpochEntry]] | None = None
    written_ms: int = 0
    end_is_stated: bool = False
    name: str | None = None


@dataclass(frozen=True)
class StoredLog:
    """All that is stored of a log, in any order.

    :param ignored: what was found and is not a part of any segment, for the user, e.g. ``"2 uploads without a manifest"``
    """

    segments: tuple[StoredSegment, ...]
    topic_id: str | None = None
    ignored: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where an export is.

    :param files: reads it
    :param root: its address, below which the paths of its logs are
    :param path: the path or URI of its objects
    :param prefix: what the names of topics' directories begin with
    """

    files: ReadableFileSystem
    root: str
    path: str
    prefix: str = ""


class DecodedObject(File, Protocol):
    """A stored object, decoded where it is read. It is kept open: ``close`` has no effect."""

    mtime_ns: int

    def sequential(self, start: int, end: int) -> File:
        """Open the decoded bytes ``[start, end)`` to be read sequentially."""


class ExportReader(Protocol):
    """An export at one place. Paths ``within`` it are relative."""

    def logs(self) -> Sequence[TopicPartition]:
        """The stored logs, sorted; ``StorageError`` if the place cannot be listed."""

    def stored(self, log: TopicPartition) -> StoredLog:
        """The stored segments of a log; ``LogError`` if it cannot be read."""

    def open(self, within: str) -> DecodedObject:
        """An encoded object, by the path that its :class:`LogFile` has; ``LogError`` if it cannot be read."""


class TargetOptions(NamedTuple):
    """The options of a command for its target.

    :param path: a new directory, or a URI
    :param source: the log directory or export that is read
    :param selected: the logs that are read
    :param accepted: what may be lost, ``FORMAT`` or ``UNCOMMITTED``; ``None``: nothing
    :param dry_run: nothing will be written
    """

    path: str
    source: str
    selected: Callable[[TopicPartition], bool]
    accepted: str | None = None
    dry_run: bool = False


class ExportTarget(Protocol):
    """Where logs are written in a layout."""

    @property
    def path(self) -> str:
        """A new directory, or a URI."""

    def write(self, log_dir: str, now_ms: int) -> str:
        """Write the logs of a log directory, complete or not at all; returns what was written, for the user.

        :raises LogError: a log cannot be written in this layout, or the file system refused. Nothing is left
        """


@dataclass(frozen=True)
class ExportLayout:
    """How exports store the segments of logs.

    :param title: of such an export, for the user
    :param reader: opens the export at a place
    :param target: of a command's options; it raises ``UsageError`` if they contradict each other, or something would be lost
        that was not accepted
    :param why_not_in_place: why its exports are never changed in place
    :param is_tiered: a cluster's metadata names its segments (``StoredSegment.name``), so that they are written again as they
        were
    :param encrypts: its segments may be encrypted
    :param spools: its reader converts segments, in the directory of the address's option ``spool``
    """

    title: str
    reader: Callable[[Place], ExportReader]
    target: Callable[[TargetOptions], ExportTarget]
    why_not_in_place: str = "other programs rely on these objects as they were written"
    is_tiered: bool = False
    encrypts: bool = False
    spools: bool = False


def when_writing(target: str) -> Callable[[TargetOptions], ExportTarget]:
    """The target of ``module:attribute``, whose module is imported when it is first used: reading does not need it."""

    return lambda options: EntryPoint(target, target, GROUP).load()(options)


class Layouts:
    """The layouts by name. Other packages are searched only for a name that this one does not have, and iteration omits them:
    help, completion and commands without a plug-in run none of their code, and do not depend on their metadata.
    """

    @cached_property
    def _installed(self) -> tuple[dict[str, EntryPoint], str]:
        """The entry points of all packages with a valid name, and the packages whose entry points are malformed."""
        entries: dict[str, EntryPoint] = {}
        malformed = []
        for package in distributions():
            try:
                declared = [entry for entry in package.entry_points if entry.group == GROUP]
            except Exception:  # the parser raises any error
                malformed.append(str(package.metadata["Name"]))
                continue
            for entry in declared:
                if LAYOUT_NAME.fullmatch(entry.name):
                    entries.setdefault(entry.name, entry)
        return entries, ", ".join(sorted(malformed))

    def __getitem__(self, name: str) -> ExportLayout:
        """:raises UsageError: no package has it, its module cannot be imported, or any other exception of it"""
        if name not in self:
            malformed = f"; the entry points of {self._installed[1]} are malformed" if self._installed[1] else ""
            hint = "install it here, and where Spark runs tasks"
            raise UsageError(f"no installed package has the layout {name}{malformed}", hint=hint)
        entry = OWN.get(name) or self._installed[0][name]
        with _errors_of(entry):
            layout = entry.load()
        if not isinstance(layout, ExportLayout):
            raise UsageError(f"{entry.value} is not an ExportLayout", hint=f"correct the entry point {name} of its package")
        if name in OWN:
            return layout
        checked: Any = partial(_Checked, entry)
        reader = _errors_of(entry)(lambda place: checked(layout.reader(place)))
        return replace(layout, reader=reader, target=_errors_of(entry)(lambda options: checked(layout.target(options))))

    def __contains__(self, name: object) -> bool:
        return name in OWN or (isinstance(name, str) and bool(LAYOUT_NAME.fullmatch(name)) and name in self._installed[0])

    def __iter__(self) -> Iterator[str]:
        """The names of this package's layouts, sorted."""
        return iter(sorted(OWN))

    def file_system(self, files: ReadableFileSystem) -> ReadableFileSystem:
        """Exports by their addresses, as log directories; ``files`` reads their places."""
        # modules that only runs over exports need
        from compaction.exports.layout_view import LayoutFileSystem

        return LayoutFileSystem(files)


class _Checked:
    """A reader or target of a plug-in, whose methods raise errors of this package only."""

    def __init__(self, entry: EntryPoint, made: object) -> None:
        self._entry, self._made = entry, made

    def __getattr__(self, name: str) -> Any:
        with _errors_of(self._entry):
            value = getattr(self._made, name)
        return _errors_of(self._entry)(value) if callable(value) else value


@contextmanager
def _errors_of(entry: EntryPoint) -> Iterator[None]:
    try:
        yield
    except (CompactionError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit, with which a command would end
        problem = f"the layout {entry.name} of {entry.value} fails: {type(error).__name__}: {error}"
        raise UsageError(problem, hint="repair or reinstall the package that has it") from error


LAYOUTS = Layouts()
