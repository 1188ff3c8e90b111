"""Fixtures that tests of several parts share."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from compaction.formats import keys as key_criteria
from tests.jvm import spark_variables
from tests.memory import use_memory
from tests.object_store.fixtures import bucket, client, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kafka.gateway import Gateway

__all__ = ["bucket", "client", "store"]

ROOT = Path(__file__).resolve().parent.parent
#: modules that use one of these fixtures run in one process, which starts its JVM once; of several the first counts
_SHARED = {"spark": "spark: SparkSession", "kafka": "gateway: Gateway"}
#: what takes longest begins first, in this order: what began last would run alone at the end
_LONGEST = ("spark", "kafka", *(f"tests/{name}.py" for name in (
    "cluster/test_cluster", "crash/test_lost_tasks", "scenarios/test_drawn", "object_store/test_any_store", "crash/test_kill",
    "trust/test_disturbed_runs", "spark/test_machines", "test_examples", "conformance/test_versions", "engines/test_workers",
    "scenarios/test_scenarios", "commands/test_exports", "commands/test_transcripts", "kernels/test_compiling",
    "airflow/test_dag", "certifier/test_random_logs", "damage/test_bombs", "notebooks/test_notebooks",
    "files/test_other_systems", "object_store/test_object_store", "crash/test_beside_a_broker",
)))  # fmt: skip
#: a tier that takes more than this share of its budget says so
_TOLERATED = 1.25

# a directory with settings would be on the class path
os.environ.pop("SPARK_CONF_DIR", None)
os.environ.update(spark_variables())
use_memory()

# the same examples in every run, however long they take on a busy machine
settings.register_profile(
    "fixed", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
# hypothesis also tries the constants of the modules that have been imported, which depend on the tests that ran before
vars(providers)["_get_local_constants"] = lambda: providers.GLOBAL_CONSTANTS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden text files are written by the tests that read them; a tier has a time budget."""
    parser.addoption("--rewrite-golden", action="store_true", help="write the golden text files anew")
    parser.addoption("--budget", type=int, metavar="SECONDS", help="say so if the run takes a quarter more")


def pytest_sessionstart(session: pytest.Session) -> None:
    """The budget counts from here."""
    session.config.stash[_BEGAN] = time.monotonic()


_BEGAN = pytest.StashKey[float]()


class Modules(LoadScopeScheduling):  # type: ignore[misc]
    """Runs a module's tests in one process, so that none of its fixtures is built twice; the modules that share a Spark session
    in one process of them all, those that share Kafka's classes likewise."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # those of the most tests do not take longest
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end: the garbage collector would look at all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that uses a shared JVM has the marker of it."""
    for marker, argument in _SHARED.items():
        if argument.partition(":")[0] in getattr(item, "fixturenames", ()):
            item.add_marker(marker)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules are distributed in this order; in one process tests run as they are given."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    rank = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(_group(item.nodeid.partition("::")[0]), len(rank)))


@cache
def _group(module: str) -> str:
    # the process that distributes the tests does not import them
    text = (ROOT / module).read_text(encoding="utf-8")
    return next((name for name, argument in _SHARED.items() if argument in text), module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With ``--dist loadscope``, modules are what is distributed."""
    return Modules(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The time against the budget."""
    budget = config.getoption("--budget")
    if budget is None:
        return
    took = time.monotonic() - config.stash[_BEGAN]
    over = f", {took / budget - 1:.0%} OVER ITS BUDGET: see tests/README.md" if took > budget * _TOLERATED else ""
    terminalreporter.write_line(f"{took:.0f} s of a budget of {budget} s{over}")


def pytest_configure(config: pytest.Config) -> None:
    """Tests send interrupts to themselves and to what they start: a shell lets what runs in the background ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # these leave the sockets that collect results to the garbage collector
    if version("pyspark").startswith(("4.0.", "4.1.")):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped if ``CI`` is ``true`` fails, unless this PySpark lacks what it tests. What a test prints, such as
    names that are not UTF-8, is escaped."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and "PySpark" not in report.longreprtext:
        report.outcome = "failed"
        report.longrepr = f"skipped, which a run under CI=true may not: {report.longrepr}"
    # a process of pytest-xdist sends them as UTF-8
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One quiet local session of two cores for the whole test run; its workers import the package from this checkout."""
    from compaction.engines.spark_session import build_session

    session = build_session(
        "tests",
        extra={
            "spark.master": "local[2]",
            "spark.default.parallelism": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def gateway() -> Gateway:
    """The JVM with the classes of the reference version of Kafka."""
    from tests.kafka.gateway import shared_gateway

    return shared_gateway()


@pytest.fixture(scope="session", autouse=True)
def _quick_guesses() -> Iterator[None]:
    """The secrets of keys to erase are derived at a small part of the cost; not in the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_criteria, "SCRYPT_N", 1 << 4)
        yield


@pytest.fixture
def tmp_log_dir(tmp_path: Path) -> Path:
    """An empty directory to lay out as a broker's log directory."""
    log_dir = tmp_path / "log-dir"
    log_dir.mkdir()
    return log_dir


@pytest.fixture(scope="session")
def missing() -> Callable[[str], None]:
    """A function for a requirement that this machine lacks: skips the test, or fails it if ``CI`` is ``true``."""

    def skip_or_fail(what: str) -> None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{what} is missing, and a run under CI=true may not skip", pytrace=False)
        pytest.skip(f"{what} is missing")

    return skip_or_fail


@pytest.fixture
def root(missing: Callable[[str], None]) -> None:
    """The test mounts, or becomes another user."""
    if os.geteuid() != 0:
        missing("root, which may mount and become another user,")
