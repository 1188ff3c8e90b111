"""The engine that runs the tasks of a command: worker processes of this machine, a Spark session, or one of Spark Connect."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from compaction.errors import UsageError
from compaction.files.calls import environment
from compaction.options.inputs import Inputs
from compaction.options.table import AUTO, CONNECT, LOCAL, SPARK
from compaction.screen.steps import step
from compaction.startup import require_java

if TYPE_CHECKING:
    from compaction import engine
    from compaction.engines.connect import ConnectEngine
    from compaction.engines.local import LocalEngine
    from compaction.engines.spark import SparkEngine
    from compaction.engines.spark_session import PlainSession, Session
    from compaction.report import RunReport
    from compaction.screen.progress import Progress

    #: a new engine is one of these
    AnyEngine = LocalEngine | SparkEngine | ConnectEngine

#: the address of a Spark Connect server
_REMOTE = "SPARK_REMOTE"
#: set by ``spark-submit``, or by users to give its options to a Python process
_SUBMITTED = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS")
#: encrypts Spark's files in its local directories with a key that is only in memory
ENCRYPTED = MappingProxyType({"spark.io.encryption.enabled": "true"})


@dataclass(frozen=True)
class Surroundings:
    """The environment of a call in the process of a command; calls of the Python API have the defaults.

    :ivar progress: shows the progress of passes
    :ivar starting: the context in which a session is started
    :ivar ends_with_process: sessions and worker processes end with this process, not with the call
    :ivar options: the options of the command line in the form of reports; ``None``: those of the call
    :ivar on_wave: called with the report so far when one of several waves has ended
    :ivar on_report: called with the report when the logs are done, before they are verified or written in another layout
    """

    progress: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    starting: Callable[[], AbstractContextManager[None]] = nullcontext
    ends_with_process: bool = False
    options: Mapping[str, object] | None = None
    on_wave: Callable[[RunReport], None] = lambda report: None
    on_report: Callable[[RunReport], None] = lambda report: None


#: those of calls in this thread
_surroundings: ContextVar[Surroundings] = ContextVar("surroundings of calls", default=Surroundings())  # noqa: B039 - frozen


def surroundings() -> Surroundings:
    return _surroundings.get()


@contextmanager
def in_command(**changes: Any) -> Iterator[None]:
    """Changes fields of the surroundings in the block."""
    token = _surroundings.set(replace(_surroundings.get(), **changes))
    try:
        yield
    finally:
        _surroundings.reset(token)


@dataclass
class EngineChoice:
    """Runs the tasks of one call.

    :ivar name: of the table of engines
    :ivar reason: the reason of the choice
    :ivar command: the command, for Spark's UI
    :ivar settings: Spark settings of a session that is started
    :ivar session: the caller's session, which is neither stopped nor configured
    :ivar cores: the largest number of worker processes, if it is given
    :ivar to_store: tasks write to an object store, so they do not run in this process: interrupts would wait for requests
    :ivar paths: the log directories of the call
    """

    name: str
    reason: str
    command: str
    settings: Mapping[str, str] = field(default_factory=dict)
    session: Session | None = None
    cores: int | None = None
    to_store: bool = False
    paths: Sequence[str] = ()
    _started: PlainSession | None = None
    _engine: AnyEngine | None = None

    def passes(self, progress: Progress | None = None) -> Callable[[], engine.Engine]:
        """A function that starts the engine; calls without work import neither Spark nor kernels."""
        return partial(self._start, progress)

    def _start(self, progress: Progress | None) -> engine.Engine:
        if self._engine is None:
            self._engine = _ENGINES[self.name](self)
        self._engine.progress = progress
        return self._engine

    @contextmanager
    def running(self) -> Iterator[Callable[[], engine.Engine]]:
        """A function that starts the engine, which shows the progress of its passes in the block if this process shows any.

        :raises UsageError: the engine is Spark, and there is no suitable Java
        """
        if self.name == SPARK and self.session is None:
            require_java()
        with surroundings().progress() as progress:
            yield self.passes(progress)

    def _local(self) -> LocalEngine:
        from compaction.engines.limits import usable_cores
        from compaction.engines.local import INLINE_BYTES, LocalEngine

        cores = usable_cores()
        return LocalEngine(min(cores, self.cores or cores), inline_bytes=0 if self.to_store else INLINE_BYTES)

    def _on_spark(self) -> SparkEngine:
        from compaction.engines.spark import SparkEngine

        session = self.session
        if session is None:
            session = self._started = self._started or start_session(self.command, self.settings)
        return SparkEngine(session.sparkContext)

    def _on_server(self) -> ConnectEngine:
        from compaction.engines.connect import ConnectEngine, connect

        if self.session is None and self._started is None:
            self._started = connect()
        engine = ConnectEngine(self.session or self._started)
        try:
            engine.require_visible([path for path in self.paths if "://" not in path])
        except BaseException:
            engine.close()
            raise
        return engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._started is not None:
            atexit.unregister(self._started.stop)
            self._started.stop()
            self._started = None

    def document(self) -> dict[str, str]:
        return {"name": self.name, "reason": self.reason}


#: a new engine is a row here, and a choice of the option
_ENGINES: Mapping[str, Callable[[EngineChoice], AnyEngine]] = {
    LOCAL: EngineChoice._local,
    SPARK: EngineChoice._on_spark,
    CONNECT: EngineChoice._on_server,
}


def choose(
    engine: str,
    command: str,
    *,
    spark: Any = None,
    settings: Mapping[str, str] = MappingProxyType({}),
    to_store: bool = False,
    cores: int | None = None,
) -> EngineChoice:
    """The engine of a call. It does not depend on the amount of data, because worker processes are faster on one machine: with
    two busy cores and a million keys per GB, 1 GB took 3.6 s, on Spark 9.2 s (medians of three); 4 GB took 8.7 s and 18.0 s.

    :param engine: one of the table, or ``auto``: Spark or Spark Connect if it runs already or was configured for this process,
        Spark if this system has no memory files
    :param spark: the caller's session
    :raises UsageError: no such engine, a session for the local one, or a number of cores for Spark
    """
    result = _choose(engine, command, spark, settings)
    if cores is not None and result.name != LOCAL:
        hint = "leave it out, or use --engine local; on Spark, set spark.master=local[N], or the cores of executors"
        raise UsageError(f"--cores is for worker processes, and the engine is {result.name} ({result.reason})", hint=hint)
    if cores is not None and (type(cores) is not int or cores < 1):
        raise UsageError(f"--cores {cores!r} is not a number of processes", hint="give 1 or more")
    if result.session is not None and result.name == SPARK:
        ship(result.session)
    return replace(result, cores=cores, to_store=to_store)


def _choose(engine: str, command: str, spark: Any, settings: Mapping[str, str]) -> EngineChoice:
    if spark is not None:
        if engine == LOCAL:
            raise UsageError("a session is given for the local engine", hint="leave out one of the two")
        return EngineChoice(CONNECT if _is_connect(spark) else SPARK, "the caller's session", command, session=spark)
    if engine == CONNECT:
        return EngineChoice(CONNECT, "as requested", command, settings, _active_connect_session())
    if engine != AUTO:
        return EngineChoice(engine, "as requested", command, settings)
    if (active := _active_connect_session()) is not None:
        return EngineChoice(CONNECT, "this process has a Spark Connect session", command, session=active)
    if _REMOTE in os.environ:
        return EngineChoice(CONNECT, f"{_REMOTE} is set", command, settings)
    submitted = next((name for name in _SUBMITTED if name in os.environ), None)
    if submitted is not None:
        return EngineChoice(SPARK, f"{submitted} is set", command, settings)
    if not hasattr(os, "memfd_create"):
        return EngineChoice(SPARK, "this system has no memory files", command, settings)
    return EngineChoice(LOCAL, "no Spark was configured", command, settings)


def _is_connect(session: Any) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect.")


def _active_connect_session() -> Any:
    """The session of Spark Connect that this process has, if any."""
    module = sys.modules.get("pyspark.sql.connect.session")
    return None if module is None else module.SparkSession.getActiveSession()


@contextmanager
def chosen(
    inputs: Inputs, settings: Mapping[str, str] = MappingProxyType({}), *, to_store: bool = False
) -> Iterator[EngineChoice]:
    """The engine of a call, see ``choose``. It ends with the block, or with the process of a command."""
    name, spark, cores = (inputs[keyword] for keyword in ("engine", "spark", "cores"))
    engine = choose(name, inputs.command.name, spark=spark, settings=settings, to_store=to_store, cores=cores)
    engine.paths = inputs["log_dirs"]
    try:
        yield engine
    finally:
        if surroundings().ends_with_process:
            atexit.register(engine.close)
        else:
            engine.close()


def start_session(name: str, settings: Mapping[str, str] = MappingProxyType({})) -> PlainSession:
    """A Spark session; its Python workers import the same package as the driver.

    :param settings: Spark settings that override the user's
    :raises UsageError: there is no suitable Java
    """
    require_java()
    from compaction.engines.spark import SPARK_ERRORS, failure
    from compaction.engines.spark_session import build_plain_session, warn_of_exposures

    step("starting Spark")
    with surroundings().starting():
        try:
            spark = build_plain_session(name, settings)
        except SPARK_ERRORS as error:
            raise failure(None, error) from error
        # executors are released before the driver exits
        atexit.register(spark.stop)
    warn_of_exposures(spark)
    ship(spark)
    return spark


def ship(session: Any) -> None:
    """Lets the Python workers of a session import this package, and reach the same stores as the driver."""
    if _is_connect(session):
        from compaction.engines.connect import ship_package

        ship_package(session)
        return
    from compaction.engines.spark_session import ship_package

    ship_package(session)
    session.sparkContext.environment.update(environment())
