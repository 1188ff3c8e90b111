"""The layouts of exports, each a plug-in: an :class:`ExportLayout` with a reader and a writer, in a module of any package.

A package declares its layouts as entry points of the group ``compaction.export_layouts``: the name, which addresses begin with,
and ``module:attribute``. Those of this package are in ``compaction.exports.LAYOUTS``, because a zip on Spark's executors has no
metadata. No other package takes their names. A module is imported when a path of its layout is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, NamedTuple, Protocol

from compaction.errors import UsageError
from compaction.names import TopicPartition

if TYPE_CHECKING:
    from compaction.storage.stored_log import ExportReader, Place

GROUP = "compaction.export_layouts"
#: what is accepted as lost: what the format does not have; also records that are not committed
FORMAT, UNCOMMITTED = "format", "uncommitted"
#: why tiered storage is never changed in place
METADATA_ELSEWHERE = "the cluster's own metadata of these objects would no longer be true"


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


class _Layouts(Mapping[str, ExportLayout]):
    """The layouts by name, sorted."""

    @cached_property
    def _own(self) -> dict[str, EntryPoint]:
        own: dict[str, str] = import_module("compaction.exports").LAYOUTS
        return {name: EntryPoint(name, value, GROUP) for name, value in own.items()}

    @cached_property
    def _all(self) -> dict[str, EntryPoint]:
        return {**{entry.name: entry for entry in entry_points(group=GROUP)}, **self._own}

    def __getitem__(self, name: str) -> ExportLayout:
        """:raises UsageError: no package has it, or its module cannot be imported"""
        if name not in self:
            raise UsageError(f"no installed package has the layout {name}", hint="install it here, and where Spark runs tasks")
        entry = self._own.get(name) or self._all[name]
        try:
            layout = entry.load()
        except (ImportError, AttributeError, TypeError) as error:
            hint = f"reinstall the package that has {entry.value}"
            raise UsageError(f"the layout {name} cannot be imported: {error}", hint=hint) from error
        if not isinstance(layout, ExportLayout):
            raise UsageError(f"{entry.value} is not an ExportLayout", hint=f"correct the entry point {name} of its package")
        return layout

    def __contains__(self, name: object) -> bool:
        # the metadata of all packages is read only for names that are not this package's
        return name in self._own or name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all))

    def __len__(self) -> int:
        return len(self._all)


LAYOUTS = _Layouts()
