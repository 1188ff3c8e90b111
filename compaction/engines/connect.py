"""Runs tasks through a Spark Connect session, on DataFrames: a server has no RDDs for its clients.

A value is some rows, each with a piece of its pickled bytes, and the number of the part that gets it. ``repartitionById``
brings the rows of a part together, ``mapInArrow`` runs its task, which merges the values by place. A server runs a query again
for each that uses it, so the shards of pass 1 are kept in the executors until pass 2 has ended; if some are lost, their tasks
run again, and what these send is compared with what the driver has accepted (``engine.Reading``).

The engine has a session of its own, a clone of the caller's: its modules, settings and interrupts are no other's, and all of it
ends with the engine. The run's secret and all keys are in the memory of the server and of the executors, and in Spark's own
local files there; who may run Python on the same server as the same user can read these.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.storagelevel import StorageLevel

from compaction.engine import Emit, Inputs, Items, Job, Places, Source, freeze_gc
from compaction.engines.local import Piece, Spool
from compaction.errors import CompactionError, UsageError
from compaction.files.calls import driver_environment, environment
from compaction.screen.steps import step

if TYPE_CHECKING:
    from compaction.screen.progress import Progress

R = TypeVar("R")

#: the oldest Spark whose Connect server has ``repartitionById``
_OLDEST = (4, 1)
#: bytes of a value in a row, and of the rows that are sent together
_ROW_BYTES, _BATCH_BYTES = 1 << 20, 8 << 20
#: rows that the JVM holds together, in a batch of Arrow and in one of kept rows
_ROWS = "16"
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": _ROWS,
    "spark.sql.inMemoryColumnarStorage.batchSize": _ROWS,
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
#: tries to reach a server that has gone: about 20 s for each request, of which two or three are open
_RETRIES = 5
#: of one value: the part that gets it, its number, and that of the piece; ``place`` is empty for the value of a task
_ROW = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("pieces", pa.int32(), nullable=False),
        pa.field("place", pa.binary(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
_SCHEMA = "part int, value long, piece int, pieces int, place binary, data binary"
#: in the text of an error of a connection
_GONE = re.compile(r'StatusCode\.UNAVAILABLE\s+details = "([^"]*)"')
_AGAIN = "nothing was changed by this step; run it again"
_EXTRA = "pip install 'grpcio>=1.67' 'grpcio-status>=1.67' 'googleapis-common-protos>=1.65' 'pandas>=2.2,<3'"


def connect(remote: str | None = None) -> Any:
    """A session of the server at ``remote``, by default that of ``SPARK_REMOTE``.

    :raises UsageError: a package is missing
    :raises CompactionError: there is no server
    """
    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise UsageError(f"Spark Connect needs a package that is not installed: {error}", hint=_EXTRA) from error
    address = remote or os.environ.get("SPARK_REMOTE")
    if not address:
        raise UsageError("no Spark Connect server is given", hint="set SPARK_REMOTE=sc://HOST:PORT, or give a session")
    step(f"connecting to {address.split(';', 1)[0]}")
    try:
        session = SparkSession.builder.remote(address).create()
    except PySparkException as error:
        raise _failure(error) from error
    _retry_for_seconds(session)
    return session


def _retry_for_seconds(session: Any) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])


def ship_package(session: Any) -> None:
    """Lets the tasks of a session import this package. Later calls change nothing."""
    from compaction.engines.spark_session import write_package

    with tempfile.TemporaryDirectory(prefix="kafka-log-compaction-") as scratch:
        package = str(Path(scratch) / "kafka_log_compaction.zip")
        write_package(package)
        session.addArtifacts(package, pyfile=True)


class ConnectEngine:
    """Implements ``compaction.engine.Engine``.

    :param session: of Spark Connect; it is left as it is
    :param progress: shows the bytes that the tasks of each pass have read
    :raises UsageError: the server is too old
    """

    def __init__(self, session: Any, progress: Progress | None = None) -> None:
        version = tuple(int(number) for number in str(session.version).split(".")[:2])
        if version < _OLDEST or not hasattr(session, "cloneSession"):
            oldest = ".".join(map(str, _OLDEST))
            raise UsageError(f"the Spark Connect engine needs Spark {oldest} or newer, this is {session.version}")
        self.progress, self._job = progress, Job("")
        self._shown_bytes = 0
        #: the server does not answer
        self._gone = False
        self._spark, self._kept = session, list[Shuffled]()
        #: number of tasks that run concurrently: Spark's default number of partitions
        self.cores = self._asked(self._begin)

    def _begin(self) -> int:
        self._spark = self._spark.cloneSession()
        _retry_for_seconds(self._spark)
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        ship_package(self._spark)
        self._spark.registerProgressHandler(self._advance)
        parts = self._spark.range(1 << 16).selectExpr("spark_partition_id()").distinct()
        return max(1, int(parts.count()))

    def require_visible(self, directories: Sequence[str]) -> None:
        """:raises UsageError: the server's tasks do not see these directories of this machine with the same names in them"""
        paths = [str(Path(directory).absolute()) for directory in directories]
        for path, found in zip(paths, self.run(Job("look at the log directories"), paths, _names), strict=True):
            if found != _names(path):
                message = f"{path}: the Spark Connect server's tasks do not see what this machine has there"
                raise UsageError(message, hint="use a directory that all of them mount, or an object store")

    def close(self) -> None:
        """Ends the engine's session, and removes what it has kept on the server."""
        for shuffled in list(self._kept):
            shuffled.close()
        # not ``stop``, which also ends a server that the caller's session has started
        if not self._gone:
            with suppress(PySparkException):
                self._spark.client.release_session()
        # an open connection would keep the interpreter from ending
        self._spark.client.close()

    def run(self, job: Job, source: Inputs, work: Callable[..., R]) -> list[R]:
        """The result of ``work`` for each task, in order."""
        source = Source.over(source)
        if not len(source):
            return []
        task = partial(_run, source.of(work), source.known, environment())
        found = self.collected(job, lambda: self._parts(source).mapInArrow(task, _SCHEMA))
        if len(found) != len(source):
            raise CompactionError(f"Spark returned the results of {len(found)} tasks, expected {len(source)}", hint=_AGAIN)
        return [found[number] for number in sorted(found)]

    def shuffle(self, job: Job, source: Inputs, emit: Emit, places: Places, *, merges: bool = False) -> Shuffled:
        """Runs nothing yet. What merges is kept by the executors: it is used twice."""
        source = Source.over(source)
        task, parts = partial(_emit, source.of(emit), source.known, environment(), places), places.parts

        def planned() -> Shuffled:
            rows = self._parts(source).mapInArrow(task, _SCHEMA) if len(source) else self._rows([])
            if not merges:
                return Shuffled(self, job, rows, parts)
            rows = self._together(rows, self._rows([None] * parts), parts + 1)
            shuffled = Shuffled(self, job, rows, parts, together=True)
            # some servers keep nothing for their clients: the tasks run again, and what they send is compared
            with suppress(PySparkException):
                shuffled.rows = rows.persist(StorageLevel.DISK_ONLY)
                self._kept.append(shuffled)
            return shuffled

        return self._asked(planned)

    def _parts(self, source: Source) -> Any:
        """The rows of all tasks, a partition for each: its own value, and the values that a shuffle has for it."""
        if source.items is None:
            return self._rows(source.tasks or ()).repartitionById(len(source), "part")
        shuffled: Any = source.items
        if shuffled.together:
            return shuffled.rows.where(f"part < {shuffled.parts}")
        return self._together(shuffled.rows, self._rows(source.tasks or [None] * len(source)), len(source))

    @staticmethod
    def _together(rows: Any, values: Any, parts: int) -> Any:
        return rows.unionAll(values).repartitionById(parts, "part")

    def _rows(self, values: Sequence[Any]) -> Any:
        batches = _batches((number, number, b"", value) for number, value in enumerate(values))
        return self._spark.createDataFrame(pa.Table.from_batches(batches, _ROW), _SCHEMA)

    def forget(self, shuffled: Shuffled) -> None:
        """Removes what the executors have kept of a shuffle; the end of its session does so, too."""
        if shuffled in self._kept and not self._gone:
            self._kept.remove(shuffled)
            with suppress(PySparkException):
                shuffled.rows.unpersist()

    def collected(self, job: Job, rows: Callable[[], Any]) -> dict[int, Any]:
        """The values of rows by their numbers."""
        self._job, self._shown_bytes = job, 0
        try:
            with job.shown(self.progress) as shown:
                if shown is None:
                    step(job.description)
                table = self._asked(lambda: rows().toArrow())
        finally:
            self._job = Job("")
        return {number: pickle.loads(data) for number, _, _, data in _whole(table.to_batches())}  # noqa: S301 - by our tasks

    def _asked(self, request: Callable[[], R]) -> R:
        """The result of a request to the server, which another thread makes: a signal interrupts the wait for it, and not gRPC,
        whose locks would stay taken.

        :raises CompactionError: it fails
        """
        result = Future[R]()

        def ask() -> None:
            try:
                result.set_result(request())
            except BaseException as error:  # noqa: BLE001 - raised by ``result``
                result.set_exception(error)

        threading.Thread(target=ask, name="request to Spark Connect", daemon=True).start()
        try:
            return result.result()
        except KeyboardInterrupt:
            with suppress(PySparkException):
                self._spark.interruptAll()
            raise
        except PySparkException as error:
            self._gone = _GONE.search(str(error)) is not None
            raise _failure(error) from error

    def _advance(self, stages: Iterable[Any] | None, *_: Any, **__: Any) -> None:
        """Shows that the first tasks have read their bytes: Spark reports how many have ended, not which."""
        sizes = self._job.task_bytes
        if self._job.name is None or self.progress is None:
            return
        for stage in stages or ():
            read_bytes = sum(sizes[: stage.num_completed_tasks])
            if stage.num_tasks == len(sizes) and read_bytes > self._shown_bytes:
                self.progress.advance(read_bytes - self._shown_bytes)
                self._shown_bytes = read_bytes


class Shuffled:
    """See ``compaction.engine.Shuffle``.

    :ivar rows: of the values
    :ivar together: they are in their partitions, each with a row for its task
    """

    def __init__(self, engine: ConnectEngine, job: Job, rows: Any, parts: int, *, together: bool = False) -> None:
        self._engine, self._job, self.rows, self.parts, self.together = engine, job, rows, parts, together
        self._results: list[Any] | None = None

    @property
    def results(self) -> list[Any]:
        if self._results is None:
            found = self._engine.collected(self._job, lambda: self.rows.where(f"part = {self.parts}"))
            self._results = list(found.values())
        return self._results

    def close(self) -> None:
        self._engine.forget(self)


def _names(path: str) -> list[str] | None:
    """The names in a directory but for hidden ones, which a run creates."""
    try:
        return sorted(entry.name for entry in Path(path).iterdir() if not entry.name.startswith("."))
    except OSError:
        return None


def _failure(error: Exception) -> CompactionError:
    from compaction.engines.spark import cause_in

    if (details := _GONE.search(str(error))) is not None:
        return CompactionError(f"the Spark Connect server does not answer: {details[1]}", hint=_AGAIN)
    return CompactionError(f"Spark's job failed: {cause_in(str(error))}", hint=_AGAIN)


def _batches(values: Iterable[tuple[int, int, bytes, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows of values, each with its part, its number and its place."""
    rows: list[tuple[int, int, int, int, bytes, bytes]] = []
    size_bytes = 0
    for part, number, place, value in values:
        data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        pieces = -(-len(data) // _ROW_BYTES)
        for piece in range(pieces):
            rows.append((part, number, piece, pieces, place, bytes(data[piece * _ROW_BYTES : (piece + 1) * _ROW_BYTES])))
            size_bytes += len(rows[-1][-1])
            if size_bytes >= _BATCH_BYTES:
                yield _batch(rows)
                rows, size_bytes = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _ROW, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ROW)


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Number, part, place and pickled bytes of the values of some rows, whose pieces may come in any order."""
    begun: dict[tuple[int, bytes], dict[int, bytes]] = {}
    for batch in batches:
        for part, number, piece, pieces, place, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if pieces == 1:
                yield number, part, place, data
                continue
            found = begun.setdefault((number, place), {})
            found[piece] = data
            if len(found) == pieces:
                del begun[number, place]
                yield number, part, place, b"".join(found[index] for index in range(pieces))
    if begun:
        raise EOFError(f"{len(begun)} values came without some of their pieces")


def _inputs(batches: Iterable[pa.RecordBatch]) -> tuple[int, Any, Items] | None:
    """The number, the value and the items of a task; ``None`` for a partition without task.

    :raises RuntimeError: the partition has not all rows of one task, and only these
    """
    freeze_gc()
    tasks, parts, spool = list[bytes](), set[int](), Spool.on_disk()
    pieces: dict[bytes, list[Piece]] = {}
    for _, part, place, data in _whole(batches):
        parts.add(part)
        if place:
            pieces.setdefault(place, []).append(spool.put(data))
        else:
            tasks.append(data)
    if not parts:
        return None
    if len(parts) > 1 or len(tasks) != 1:
        raise RuntimeError(f"Spark has divided the rows of a part: a partition has {len(parts)} parts and {len(tasks)} tasks")
    return parts.pop(), pickle.loads(tasks[0]), _items(spool, pieces)  # noqa: S301 - written by the driver


def _items(spool: Spool, pieces: dict[bytes, list[Piece]]) -> Items:
    """The values of each place in a spool, one in memory at a time."""
    for place, of_place in pieces.items():
        yield pickle.loads(place), (pickle.loads(piece.load()) for piece in of_place)  # noqa: S301 - written by our tasks
    spool.close()


def _run(
    function: Callable[[Any, Any, Any], Any], known: Any, variables: dict[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task of ``run``."""
    inputs = _inputs(batches)
    if inputs is not None:
        number, task, items = inputs
        with driver_environment(variables):
            yield from _batches([(number, number, b"", function(task, items, known))])


def _emit(
    function: Emit, known: Any, variables: dict[str, str], places: Places, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task of ``shuffle``. Its values have numbers that no other task has, and the same ones when it is repeated."""
    inputs = _inputs(batches)
    if inputs is None:
        return
    number, task, items = inputs
    with driver_environment(variables):
        yield from _batches(
            (places.parts if to is None else places(to), (number + 1 << 32) + count, pickle.dumps(to), value)
            for count, (to, value) in enumerate(function(task, items, known))
        )
