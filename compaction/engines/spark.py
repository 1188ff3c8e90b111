"""Runs tasks as Spark jobs.

A shuffle is ``partitionBy``, and ``reduceByKey`` if it merges. Only packed values are shuffled: there is no Python object per
record. One more partition receives what tasks emit for the driver, which collects it.

The session may be the caller's, and is left as it was: the thread's job description and job group are restored, broadcasts are
destroyed, and an interrupt cancels only the jobs of the call, which have a tag.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, Broadcast, SparkConf, SparkContext, SparkStageInfo
from pyspark.errors import PySparkException

from compaction.engine import Emission, Emit, Inputs, Job, Place, Places, Source, freeze_gc
from compaction.engines.spark_session import errors_of_start
from compaction.errors import CompactionError
from compaction.files import read_counter
from compaction.screen.progress import Progress
from compaction.screen.steps import step
from compaction.startup import is_local

_LOG = logging.getLogger(__name__)
R = TypeVar("R")

#: seconds between two polls of Spark's status
POLL_INTERVAL_S = 0.2

#: a place with some or all of its values
_Placed = tuple[Place | None, list[Any]]


class SparkEngine:
    """Implements ``compaction.engine.Engine``.

    :param progress: shows the bytes that the tasks of each pass have read
    """

    def __init__(self, sc: SparkContext, progress: Progress | None = None) -> None:
        self._sc, self.progress = sc, progress
        self._tag = f"kafka-log-compaction-{uuid.uuid4().hex}"
        self._broadcasts: list[Broadcast[Any]] = []
        await_executors(sc)
        # a copy of all settings, one call of the JVM for each
        conf = sc.getConf()
        #: number of tasks that run concurrently
        self.cores = concurrent_tasks(sc, conf)
        self._speculates = conf.get("spark.speculation", "false") == "true"

    def close(self) -> None:
        """Releases what shuffles need."""
        self.release(*self._broadcasts)

    def run(self, job: Job, source: Inputs, work: Callable[..., R]) -> list[R]:
        """The result of ``work`` for each task, in order."""
        source = Source.over(source)
        known = self._known(source)
        if job.name is None and source.items is not None and (waiting := _shuffled(source).job) is not None:
            # the tasks of the shuffle run only now
            job = replace(waiting, writes=job.writes)
        try:
            results = self._over(source, known, source.of(work), lambda result: (result,))
            return self.collect(job, results, range(len(source)))
        finally:
            self.release(known)

    def shuffle(self, job: Job, source: Inputs, emit: Emit, places: Places, *, merges: bool = False) -> Shuffled:
        """Runs nothing yet. The values of its tasks will be in Spark's shuffle files."""
        source = Source.over(source)
        # where tasks know much, there may be many places, too
        known, parts = self._known(source, places), places.parts
        small: Any = places if known is None else None

        def partition(of: Place | None) -> int:
            part_of = small if known is None else known.value[2]
            return parts if of is None else part_of(of)

        emitted = self._over(source, known, source.of(emit), _listed)
        # without partitionBy, reduceByKey would combine on the map side, and a task would hold all of its output in memory
        shuffled = emitted.partitionBy(parts + 1, partition)
        if merges:
            shuffled = shuffled.reduceByKey(_extended, parts + 1, partition)
        return Shuffled(self, job, shuffled, parts, known)

    def _known(self, source: Source, places: Places | None = None) -> Broadcast[Any] | None:
        """What is known to all tasks, the tasks of the parts of a shuffle, and the function of places."""
        tasks = None if source.items is None else source.tasks
        if source.known is None and tasks is None:
            return None
        self._broadcasts.append(self._sc.broadcast((source.known, tasks, places)))
        return self._broadcasts[-1]

    def _over(
        self,
        source: Source,
        known: Broadcast[Any] | None,
        function: Callable[[Any, Any, Any], Any],
        values: Callable[[Any], Iterable[Any]],
    ) -> RDD[Any]:
        """The ``values`` of the result of ``function`` for each task."""
        if source.items is None:

            def run_tasks(tasks: Iterable[Any]) -> Iterator[Any]:
                freeze_gc()
                for task in tasks:
                    yield from values(function(task, None, None if known is None else known.value[0]))

            tasks = source.tasks or ()
            return self._sc.parallelize(tasks, max(1, len(tasks))).mapPartitions(run_tasks)
        shuffled, parts = _shuffled(source), len(source)

        def run_part(number: int, items: Iterable[Any]) -> Iterable[Any]:
            freeze_gc()
            if number == parts:
                return ()
            about, tasks, _ = (None, None, None) if known is None else known.value
            return values(function(None if tasks is None else tasks[number], items, about))

        return shuffled.rdd.mapPartitionsWithIndex(run_part)

    def collect(self, job: Job, rdd: RDD[R], partitions: Sequence[int]) -> list[R]:
        """The elements of some partitions."""
        with self.running():
            with job.shown(self.progress) as shown, ExitStack() as watching:
                if shown is None:
                    step(job.description)
                else:
                    watching.enter_context(watched(self._sc, job.name or "", job.task_bytes, shown.advance))
                self._sc.setJobDescription(job.description)
                collected: list[R] = self._sc.runJob(rdd, list, partitions) if partitions else []
            # killed attempts may still write files, which the swap removes. The next run removes files that are written later
            if job.writes and self._speculates:
                self.await_tasks()
        return collected

    def release(self, *broadcasts: Broadcast[Any] | None) -> None:
        """Destroys some broadcasts of the engine: no job that needs them runs again."""
        released = [broadcast for broadcast in self._broadcasts if broadcast in broadcasts]
        self._broadcasts = [broadcast for broadcast in self._broadcasts if broadcast not in released]
        with suppress(*SPARK_ERRORS, OSError):
            for broadcast in released:
                broadcast.destroy()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Jobs that start in the block are those of the engine.

        :raises CompactionError: one fails
        """
        properties = {name: self._sc.getLocalProperty(name) for name in _PROPERTIES}
        self._sc.addJobTag(self._tag)
        done = threading.Event()
        threading.Thread(target=self.report_stall, args=(done,), name="report a stalled job", daemon=True).start()
        try:
            yield
        except KeyboardInterrupt:
            # under spark-submit, an interrupt at the terminal also ends the JVM
            with suppress(*SPARK_ERRORS, OSError):
                self._sc.cancelJobsWithTag(self._tag)
                self.await_tasks()
            raise
        except SPARK_ERRORS as error:
            raise failure(self._sc, error) from error
        finally:
            done.set()
            with suppress(*SPARK_ERRORS, OSError):
                self._sc.removeJobTag(self._tag)
                for name, value in properties.items():
                    self._sc.setLocalProperty(name, value)  # type: ignore[arg-type]

    def await_tasks(self) -> None:
        """Waits, with a timeout, until no task of the engine runs."""
        deadline = time.monotonic() + _KILLED_ATTEMPTS_S
        while time.monotonic() < deadline and any(stage.numActiveTasks for stage in self._stages()):
            time.sleep(_POLL_S)

    def _stages(self) -> Iterator[SparkStageInfo]:
        tracker, jobs = self._sc.statusTracker(), self._sc._jsc.sc().statusTracker().getJobIdsForTag(self._tag)
        for job in map(tracker.getJobInfo, jobs):
            for stage in map(tracker.getStageInfo, job.stageIds if job is not None else ()):
                if stage is not None:
                    yield stage

    def report_stall(self, done: threading.Event) -> None:
        """Warns if no task of the engine has started after ``STALLED_S``, unless the job is ``done`` by then."""
        if done.wait(STALLED_S):
            return
        with suppress(*SPARK_ERRORS, OSError):
            stages = list(self._stages())
            if not any(stage.numActiveTasks or stage.numCompletedTasks or stage.numFailedTasks for stage in stages):
                _warn_of_stall(self._sc, STALLED_S)


class Shuffled:
    """See ``compaction.engine.Shuffle``.

    :ivar rdd: ``parts`` partitions, and one of the driver
    :ivar job: that of its tasks, as long as they have not run
    """

    def __init__(self, engine: SparkEngine, job: Job, rdd: RDD[_Placed], parts: int, known: Broadcast[Any] | None) -> None:
        self._engine, self.rdd, self.parts, self._known = engine, rdd, parts, known
        self.job: Job | None = job
        self._results: list[Any] | None = None

    @property
    def results(self) -> list[Any]:
        if self._results is None:
            collected = self._engine.collect(self.job or Job("collect results"), self.rdd, [self.parts])
            self._results = [value for _, values in collected for value in values]
            self.job = None
        return self._results

    def close(self) -> None:
        self._engine.release(self._known)


def _shuffled(source: Source) -> Shuffled:
    return cast("Shuffled", source.items)


def _listed(items: Iterable[Emission]) -> Iterator[_Placed]:
    return ((place, [value]) for place, value in items)


def _extended(values: list[Any], others: list[Any]) -> list[Any]:
    """The values of both, in place. No array is copied."""
    values.extend(others)
    return values


@contextmanager
def watched(sc: SparkContext, job_group: str, task_bytes: Sequence[int], advance: Callable[[int], None]) -> Iterator[None]:
    """Shows the bytes of the tasks of a job as these read or complete, during the block.

    Jobs of the block run in ``job_group``. Their last stage with ``len(task_bytes)`` tasks counts: earlier stages of that size
    may belong to another pass and be skipped by Spark. When the block ends without an error, all bytes count.
    """
    if sc.getLocalProperty("spark.jobGroup.id") != job_group:
        sc.setJobGroup(job_group, job_group)
    watch = _StageWatch(sc, job_group, task_bytes, advance)
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,), name=f"progress of {job_group}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    watch.complete(len(task_bytes))


class _StageWatch:
    """Converts the number of completed tasks of a stage to bytes; a task counts once, even if Spark runs it again."""

    def __init__(self, sc: SparkContext, job_group: str, task_bytes: Sequence[int], advance: Callable[[int], None]) -> None:
        self._tracker, self._job_group, self._advance = sc.statusTracker(), job_group, advance
        self._bytes_up_to = list(accumulate(task_bytes, initial=0))
        self._done_bytes = 0
        #: the directory in which tasks count the bytes that they read
        self._counts = sc.environment.get(read_counter.VARIABLE)
        self._counted_before = 0 if self._counts is None else read_counter.total(self._counts)
        self._earlier_jobs = frozenset(self._tracker.getJobIdsForGroup(job_group))

    def run(self, stop: threading.Event) -> None:
        """Polls every :data:`POLL_INTERVAL_S` until ``stop`` is set, or until Spark has failed, which the job reports."""
        while not stop.wait(POLL_INTERVAL_S):
            try:
                self.complete(self._finished_tasks())
                if self._counts is not None:
                    self._reach(read_counter.total(self._counts) - self._counted_before)
            except (Py4JError, OSError):
                return

    def complete(self, tasks: int) -> None:
        """Counts the bytes of the first ``tasks`` tasks that were not counted before."""
        self._reach(self._bytes_up_to[tasks])

    def _reach(self, done_bytes: int) -> None:
        # tasks that Spark runs again also read again
        done_bytes = min(done_bytes, self._bytes_up_to[-1])
        if done_bytes > self._done_bytes:
            self._advance(done_bytes - self._done_bytes)
            self._done_bytes = done_bytes

    def _finished_tasks(self) -> int:
        tasks = len(self._bytes_up_to) - 1
        for job in sorted(set(self._tracker.getJobIdsForGroup(self._job_group)) - self._earlier_jobs):
            info = self._tracker.getJobInfo(job)
            for stage in sorted(info.stageIds, reverse=True) if info is not None else ():
                stage_info = self._tracker.getStageInfo(stage)
                if stage_info is not None and stage_info.numTasks == tasks:
                    return min(int(stage_info.numCompletedTasks), tasks)
        return 0


#: how long to wait for tasks that Spark has killed
_KILLED_ATTEMPTS_S = 10.0
#: how long after its start an application may still get executors
REGISTRATION_S = 30.0
#: executors of an application of unknown size have registered if none was added for this long
_SETTLED_S = 2.0
_POLL_S = 0.1
#: Spark's default for the executors that dynamic allocation may add
_UNLIMITED = 2**31 - 1
#: after this time without a started task, the user is told why
STALLED_S = 30.0
_PROPERTIES = ("spark.job.description", "spark.jobGroup.id", "spark.job.interruptOnCancel")

SPARK_ERRORS = (Py4JError, PySparkException)


def slots(sc: SparkContext) -> int:
    """Number of tasks that the executors which have registered run concurrently."""
    scala: Any = sc._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def concurrent_tasks(sc: SparkContext, conf: SparkConf) -> int:
    """Number of tasks that run concurrently, with as many executors as dynamic allocation may add. This is not
    ``spark.default.parallelism``: that is the number of partitions of the user's jobs."""
    added = 0
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors = int(conf.get("spark.dynamicAllocation.maxExecutors", "0"))
        added = executors * _executor_slots(conf) if executors < _UNLIMITED else 0
    return max(1, slots(sc), added)


def await_executors(sc: SparkContext) -> None:
    """Waits for the executors of an application that has just started; work is divided among those that have registered. Warns
    if there is none."""
    # the age of an application is in the time of the system
    deadline_s = sc.startTime / 1000 + REGISTRATION_S
    if is_local(sc.master) or time.time() >= deadline_s:
        return
    expected, found, changed_s = _expected_slots(sc), slots(sc), time.time()
    while time.time() < deadline_s:
        settled = found >= expected if expected is not None else found and time.time() >= changed_s + _SETTLED_S
        if settled:
            return
        time.sleep(_POLL_S)
        if (now := slots(sc)) != found:
            found, changed_s = now, time.time()
    if not found:
        _warn_of_stall(sc, REGISTRATION_S)


def _expected_slots(sc: SparkContext) -> int | None:
    """The number of tasks that the requested executors run, before there is a job; ``None`` if it is not known."""
    conf = sc.getConf()
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", str(sc.master))
    if cluster is not None:
        return int(cluster[1]) * int(cluster[2]) // _task_cpus(conf)
    names = ["spark.executor.instances"]
    dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    if dynamic:
        names += ["spark.dynamicAllocation.initialExecutors", "spark.dynamicAllocation.minExecutors"]
    instances = [int(value) for value in map(conf.get, names) if value is not None]
    if instances or dynamic:
        return max(instances, default=0) * _executor_slots(conf)
    cores = conf.get("spark.cores.max")
    return None if cores is None else int(cores) // _task_cpus(conf)


def _task_cpus(conf: SparkConf) -> int:
    return int(conf.get("spark.task.cpus", "1"))


def _executor_slots(conf: SparkConf) -> int:
    return max(1, int(conf.get("spark.executor.cores", "1")) // _task_cpus(conf))


def _warn_of_stall(sc: SparkContext, seconds: float) -> None:
    _LOG.warning("no task has started for %d s: %s", seconds, why_stalled(sc))


def why_stalled(sc: SparkContext) -> str:
    """What Spark knows about the executors of an application none of whose tasks has started."""
    conf = sc.getConf()
    executors = sc.statusTracker().getExecutorInfos()
    if not is_local(sc.master):
        # the first one is the driver
        executors = executors[1:]
    if executors:
        busy = sum(executor.numRunningTasks for executor in executors)
        return f"{len(executors)} executors have registered, and run {busy} tasks of other jobs"
    names = ("spark.executor.cores", "spark.executor.memory", "spark.cores.max")
    requested = ", ".join(f"{name}={conf.get(name)}" for name in names if conf.get(name) is not None) or "the default resources"
    return f"no executor has registered with {sc.master}. Each was requested with {requested}: does a worker have that free?"


#: what Spark adds to the text of the error of a task
_TASK = re.compile(r"most recent failure: (?:Lost task \S+ in stage \S+ \(TID \d+\) \(.*?\): )?(.*)", re.DOTALL)
_CLASS = re.compile(r'^(?:Exception in thread "main" )?(?:[\w$]+\.)+([\w$]+(?:: |$))')
#: the last line of a Python traceback
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit|Interrupted))(?:: (.*))?$", re.MULTILINE)
_NO_USER = "the user of this process has no entry in /etc/passwd: add one, or use --engine local"
_HINTS = (
    ("No space left on device", "free space in spark.local.dir, or choose another directory"),
    ("spark.driver.maxResultSize", "raise spark.driver.maxResultSize"),
    ("TaskResultLost", "an executor was lost, or a result was larger than spark.driver.maxResultSize"),
    ("OutOfMemoryError", "raise spark.driver.memory or spark.executor.memory"),
    ("invalid null input: name", _NO_USER),
    # Java's user.home
    ("basedir must be absolute: ?/", _NO_USER),
)


def failure(sc: SparkContext | None, error: Exception) -> CompactionError:
    """The error of a job, or of the start of a session (without ``sc``), in one line."""
    text = (errors_of_start() if sc is None else "") or _text(error)
    hint = next((hint for pattern, hint in _HINTS if pattern in text), None)
    cause = cause_in(text)
    if sc is None:
        return CompactionError(f"Spark did not start: {cause}", hint=hint)
    return CompactionError(f"Spark's job failed: {cause}", hint=hint or "nothing was changed by this step")


def cause_in(text: str) -> str:
    """The cause in the text of an exception of Spark, or in the standard error of its JVM: Java's innermost one, the exception
    of a task, the last one of Python."""
    causes = re.findall(r"^Caused by: (.*)", text, re.MULTILINE)
    if causes:
        return _CLASS.sub(r"\1", causes[-1])
    task = _TASK.search(text)
    text = text if task is None else task[1]
    if "Traceback (most recent call last)" in text:
        raised = list(_PYTHON.finditer(text.split("\n\tat ")[0]))
        if raised:
            name, message = raised[-1].groups()
            return f"{name}: {message}" if message else str(name)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return _CLASS.sub(r"\1", line)


def _text(error: Exception) -> str:
    """The messages of an exception of Java and of its causes, or that of another one."""
    if not isinstance(error, Py4JJavaError):
        return str(error)
    texts: list[str] = []
    exception = error.java_exception
    while exception is not None and len(texts) < 10:
        texts.append(str(exception.toString()))
        exception = exception.getCause()
    # the innermost cause first, unless the outer one has that of a task
    return texts[0] if "most recent failure" in texts[0] else "\n".join(reversed(texts))
