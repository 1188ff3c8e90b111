"""The table of all searches: a function that searches for a turn, and how what it finds can be repeated."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.conformance import fuzz
from tests.conformance.dump_files import KafkaDump, agree_on_all, random_files
from tests.conformance.growing_logs import GrowingLogs
from tests.conformance.growing_logs import random_logs as random_growing_logs
from tests.crash import kill, snapshots
from tests.damage import fuzz as damage
from tests.exports import exchanged_uploads
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.jars import KAFKA_TOOLS, REFERENCE, TOOLS_RELEASE, VERSIONS
from tests.passes.test_repeated_tasks import problems_of
from tests.policies import evenings
from tests.scenarios.language import HERE
from tests.source.query_sequences import drawn_sequence, source_session
from tools.search import threads
from tools.search.in_memory import CASES, IN_MEMORY, write
from tools.search.turns import Failure, Turn, repeat

#: random logs of a run of the job, damaged inputs of a target, queries of a sequence
LOGS, INPUTS, QUERIES = 20, 100, 12
_MANY = 10**6


class Search(NamedTuple):
    """``run`` yields what it finds in a turn. With ``bounds_checks`` it needs a process whose kernels have them."""

    name: str
    run: Callable[[Turn], Iterator[Failure]]
    bounds_checks: bool = False


def random_logs(turn: Turn, version: str, *, spark: bool = False, include_active: bool = False) -> Iterator[Failure]:
    """Random logs, cleaned by a version of Kafka and by the job."""
    options = f"--kafka-version {version}" + " --spark" * spark + " --include-active" * include_active
    for seed in turn.seeds(LOGS):
        batch = fuzz.Batch(seed, LOGS, version, spark, include_active)
        for name, problems in batch.run().failed.items():
            path = batch.write_small(name, turn.cases or HERE)
            seeds = f"--seeds {seed}:{seed + LOGS} --chunk {LOGS}"
            yield Failure("\n".join(problems[:5]), f"python -m tests.conformance.fuzz {seeds} {options}", path)


def damaged_bytes(turn: Turn) -> Iterator[Failure]:
    """Damaged bytes for every reader."""
    for seed in turn.seeds():
        for target in damage.TARGETS:
            try:
                damage.run(target, INPUTS, seed)
            except damage.Found as found:
                path = write("damage", damage.values_of(found), turn.cases or CASES)
                command = f"python -m tests.damage.fuzz --only '{target}' --inputs {INPUTS} --seed {seed}"
                yield Failure(f"{found}\n{found.__cause__!r}", command, path)


def kills(turn: Turn) -> Iterator[Failure]:
    """Processes of runs on Spark are killed at random times."""
    runs = kill.OnSpark(partial(kill.random_kills, random.Random(turn.seed)), cluster_every=4)
    work = partial(kill.kill_chains, runs, kill.Chains(_MANY, seconds=turn.left()))
    yield from turn.unless_it_fails(repeat("kills", turn.seed, turn.seconds), work)


def killed_drivers(turn: Turn) -> Iterator[Failure]:
    """Runs without Spark are killed at random times."""
    runs = kill.InForks(random.Random(turn.seed))
    work = partial(kill.kill_chains, runs, kill.Chains(_MANY, seconds=turn.left()))
    yield from turn.unless_it_fails(repeat("killed drivers", turn.seed, turn.seconds), work)


def broker_snapshots(turn: Turn) -> Iterator[Failure]:
    """Snapshots of a running broker."""

    def work() -> None:
        with TemporaryDirectory(prefix="snapshots-") as scratch:
            snapshots.check_snapshots(Path(scratch), _MANY, turn.seed, turn.left())

    yield from turn.unless_it_fails(repeat("snapshots", turn.seed, turn.seconds), work)


def dumps(turn: Turn) -> Iterator[Failure]:
    """The files of random logs, printed by Kafka's tool and by the job's."""
    gateway = Gateway(KAFKA_TOOLS, version=TOOLS_RELEASE)
    try:
        for seed in turn.seeds():
            with TemporaryDirectory(prefix="dumps-") as scratch:
                try:
                    agree_on_all(KafkaDump(gateway), random_files(Path(scratch), seed))
                except AssertionError:
                    yield Failure(traceback.format_exc(), repeat("dumps", seed))
    finally:
        gateway.close()


def incremental_copies(turn: Turn) -> Iterator[Failure]:
    """Copies of growing logs with ``--since``, and rounds of Kafka's cleaner."""
    for seed in turn.seeds():
        with TemporaryDirectory(prefix="copies-") as scratch:
            found = GrowingLogs(shared_gateway(), Path(scratch), seed, random_growing_logs(seed)).problems()
        if found:
            yield Failure("\n".join(found[:5]), repeat("incremental copies", seed))


def chains_with_damage(turn: Turn) -> Iterator[Failure]:
    """Copies of growing logs with ``--since`` of damaged copies, and rounds of Kafka's cleaner."""
    for seed in turn.seeds():
        with TemporaryDirectory(prefix="chains-") as scratch:
            chain = GrowingLogs(shared_gateway(), Path(scratch), seed, random_growing_logs(seed), damaging=True)
            found = chain.problems()
        if found:
            yield Failure("\n".join(found[:5]), repeat("chains with damage", seed))


def uploads_exchanged(turn: Turn) -> Iterator[Failure]:
    """Uploads of several leaders, some of whose objects were exchanged or cut."""
    for seed in turn.seeds():
        if found := exchanged_uploads.problems(seed):
            yield Failure("\n".join(found), repeat("exchanged uploads", seed))


def policies_through_time(turn: Turn) -> Iterator[Failure]:
    """Random logs under random policies, day by day by Kafka's log and cleaner, and simulated."""
    for seed in turn.seeds():
        with TemporaryDirectory(prefix="evenings-") as scratch:
            found = evenings.Drawn.from_seed(seed).differences(shared_gateway(), Path(scratch))
        if found:
            yield Failure("\n".join(found[:5]), repeat("policies through time", seed))


def query_sequences(turn: Turn) -> Iterator[Failure]:
    """Sequences of queries over one DataFrame of a random log, and over a plain table of its records."""
    spark = source_session()
    try:
        for seed in turn.seeds():
            with TemporaryDirectory(prefix="queries-") as scratch:
                found = drawn_sequence(spark, Path(scratch), seed, QUERIES)
            if found:
                yield Failure("\n".join(found), repeat("query sequences", seed))
    finally:
        spark.stop()


def calls_in_threads(turn: Turn) -> Iterator[Failure]:
    """Calls of the Python API in threads, and alone."""
    for seed in turn.seeds():
        with TemporaryDirectory(prefix="threads-") as scratch:
            found = threads.differences(Path(scratch), seed)
        if found:
            yield Failure("\n".join(found[:5]), repeat("threads", seed))


def repeated_tasks(turn: Turn) -> Iterator[Failure]:
    """Tasks of random commands are repeated, and cannot read a random log the second time."""
    for seed in turn.seeds():
        if found := problems_of(seed):
            yield Failure("\n".join(found[:5]), repeat("repeated tasks", seed))


#: in this order; the judges of the fuzzer come last because they are many
SEARCHES = (
    *(Search(name, partial(search.run, name)) for name, search in IN_MEMORY.items()),
    Search("damage", damaged_bytes, bounds_checks=True),
    Search("threads", calls_in_threads),
    Search("repeated tasks", repeated_tasks),
    Search("killed drivers", killed_drivers),
    Search(f"random logs {REFERENCE}", partial(random_logs, version=REFERENCE)),
    Search("random logs on Spark", partial(random_logs, version=REFERENCE, spark=True)),
    Search("random logs with active segments", partial(random_logs, version=REFERENCE, include_active=True)),
    Search("dumps", dumps),
    Search("query sequences", query_sequences),
    Search("incremental copies", incremental_copies),
    Search("chains with damage", chains_with_damage),
    Search("policies through time", policies_through_time),
    Search("exchanged uploads", uploads_exchanged),
    Search("snapshots", broker_snapshots),
    Search("kills", kills),
    *(Search(f"random logs {each}", partial(random_logs, version=each)) for each in VERSIONS if each != REFERENCE),
)
