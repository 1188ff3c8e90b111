"""The DAG in a real Airflow, in a separate environment: parsed, and run on the sample by the project's spark-submit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from compaction.formats.record_batch import HEADER_SIZE
from tests.golden import SAMPLE_ROOT, unpack_sample
from tests.jvm import spark_variables
from tests.kafka.jars import spark_home
from tests.large_log import replace_log, write_large_log
from tests.processes import ROOT

pytestmark = pytest.mark.airflow

ENVIRONMENT = Path(sys.executable).parent.parent
SLOT, NEXT_SLOT = "2025-12-31T02:10:00+00:00", "2026-01-01T02:10:00+00:00"


class Airflow:
    """An Airflow that the commands of the page have prepared, with its own database.

    ``scratch`` is also the directory in which the commands are run, as the root of the project.
    """

    def __init__(self, scratch: Path, home: Path, java: Path) -> None:
        self.folder = scratch / "dags"
        shutil.copytree(ROOT / "conf/airflow", self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.scratch = scratch
        self.environment = {
            # an ordinary one of Airflow: neither the project's Python nor its Spark are on it
            "PATH": os.pathsep.join([str(home / "bin"), str(java.parent), "/usr/bin", "/bin"]),
            "HOME": str(scratch),
            "AIRFLOW_HOME": str(scratch),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            **spark_variables(),
            **{name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ},
        }
        page = (ROOT / "docs/airflow.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        install, places, *self.commands = block.splitlines()
        assert "pip install" in install and "AIRFLOW_HOME=" in places
        for command in self.commands[:-1]:
            self.call(command)
        self._runner = subprocess.Popen(
            [str(home / "bin/python"), str(Path(__file__).with_name("run_dags.py"))],
            env=self.environment, cwd=scratch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def call(self, command: str, **places: Path) -> str:
        """Runs a command of the page on other directories; returns its output."""
        command = command.replace("airflow/bin/airflow", "airflow").replace("local[*]", "local[2]")
        command = command.replace("$PWD/.venv", str(ENVIRONMENT))
        for name, place in places.items():
            command = re.sub(f'(?<="{name}": )"[^"]*"', json.dumps(str(place)), command)
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=self.environment, cwd=self.scratch, capture_output=True, text=True, check=False,
            timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout + done.stderr

    def run(
        self,
        place: Path,
        log_dir: Path,
        dag: str = "kafka_log_compaction",
        variables: Mapping[str, str] | None = None,
        slot: str = SLOT,
        **more: object,
    ) -> tuple[dict[str, Any], str]:
        """Runs a DAG for one slot; the states of its tasks, and its output."""
        output = place / "output"
        settings = {
            "application": str(ROOT / f"jobs/{'dry_run' if dag == 'kafka_log_policies' else 'compact'}.py"),
            "environment": str(ENVIRONMENT),
            "spark_home": str(spark_home()),
            "log_dir": str(log_dir),
            "report_dir": str(place / "reports"),
            **({"min_ratio": 0} if dag == "kafka_log_compaction" else {}),
            **more,
        }
        order = {"folder": str(self.folder), "dag": dag, "slot": slot, "settings": settings, "variables": dict(variables or {})}
        assert self._runner.stdin is not None and self._runner.stdout is not None
        print(json.dumps({**order, "output": str(output)}), file=self._runner.stdin, flush=True)
        answer = self._runner.stdout.readline()
        said = output.read_text(errors="replace")
        assert answer, said[-4000:]
        return json.loads(answer), said

    def close(self) -> None:
        """Ends its process."""
        assert self._runner.stdin is not None and self._runner.stdout is not None
        self._runner.stdin.close()
        self._runner.stdout.close()
        self._runner.wait(timeout=60)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Iterator[Airflow]:
    """An Airflow without anything but what the page tells to prepare."""
    home = Path(os.environ.get("AIRFLOW_ENVIRONMENT", ROOT / "build/airflow"))
    if not (home / "bin/airflow").exists():
        missing(f"an environment with Airflow in {home} (`make suites` makes it)")
    java = shutil.which("java")
    if java is None:
        missing("java")
    assert java is not None
    prepared = Airflow(tmp_path_factory.mktemp("airflow"), home, Path(java))
    yield prepared
    prepared.close()


def test_the_commands_of_the_page_prepare_an_airflow_and_run_the_dag(airflow: Airflow, tmp_path: Path) -> None:
    """All but the installation, in an Airflow without a database, a pool, a connection and variables."""
    assert [re.sub(r"^airflow/bin/airflow (\w+ \w+).*", r"\1", each) for each in airflow.commands] == [
        "db migrate", "pools set", "connections add", "variables set", "dags test",
    ]  # fmt: skip
    said = airflow.call(airflow.commands[-1], log_dir=unpack_sample(tmp_path), report_dir=tmp_path / "reports")
    (report,) = (tmp_path / "reports").glob("compact-*.json")
    assert json.loads(report.read_text())["totals"]["failed"] == 0, said[-3000:]


def test_a_slot_is_compacted_as_of_its_end_and_a_repeated_one_finds_nothing_to_do(airflow: Airflow, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    found, said = airflow.run(tmp_path, log_dir)
    assert found["dags"] == ["kafka_log_compaction", "kafka_log_compaction_local", "kafka_log_policies"]
    assert (found["max_active_runs"], found["catchup"]) == (1, False)
    assert found["pools"]["compact"] == "kafka_log_dirs"
    assert found["retries"]["compact"] == 2
    assert found["downstream"] == {"compact": ["check_report"], "check_report": []}
    assert found["tasks"] == {"compact": "success", "check_report": "success"}, said
    assert found["run"] == "success"
    end_ms = int(datetime.fromisoformat(found["end"]).timestamp()) * 1000
    (report,) = (tmp_path / "reports").iterdir()
    assert report.name == f"compact-{end_ms}.json"
    document = json.loads(report.read_text())
    assert document["as_of_ms"] == end_ms
    assert document["totals"]["cleaned"] > 3
    assert not list(log_dir.glob("*/*.clean*"))
    before = {path: path.read_bytes() for path in log_dir.rglob("*.log")}
    found, said = airflow.run(tmp_path, log_dir)
    assert found["run"] == "success", said
    assert {path: path.read_bytes() for path in log_dir.rglob("*.log")} == before != {}


DAG_OF_THE_PAGE = """\
from datetime import datetime, timezone
from airflow.sdk import DAG
with DAG("own", schedule="@daily", start_date=datetime(2025, 12, 1, tzinfo=timezone.utc)):
"""


@pytest.fixture
def own_dag(airflow: Airflow, tmp_path: Path) -> Iterator[None]:
    """The task of one's own that the page writes, in a DAG."""
    page = (ROOT / "docs/airflow.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = example.replace("/opt/kafka-log-compaction/.venv", str(ENVIRONMENT))
    example = example.replace("/backup/kafka-1", str(tmp_path / SAMPLE_ROOT))
    dag = airflow.folder / "own.py"
    dag.write_text(DAG_OF_THE_PAGE + textwrap.indent(example, "    "))
    yield
    dag.unlink()


@pytest.mark.usefixtures("own_dag")
@pytest.mark.parametrize("dag", ["kafka_log_compaction_local", "own"])
def test_a_task_calls_the_python_api_in_the_environment_of_the_project(airflow: Airflow, tmp_path: Path, dag: str) -> None:
    """On logs that need worker processes: these would run the script of the task, which has no guard, again."""
    log_dir = unpack_sample(tmp_path)
    replace_log(log_dir, "orders", write_large_log(tmp_path / "large") / "orders-0")
    found, said = airflow.run(tmp_path, log_dir, dag)
    assert found["tasks"] == {"compact": "success"}, said
    assert found["pools"] == {"compact": "kafka_log_dirs"}
    assert not list(log_dir.glob("*/*.clean*"))
    assert sum(file.stat().st_size for file in (log_dir / "orders-0").glob("*.log")) < 10_000_000
    reports = [json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*.json")]
    assert reports or dag == "own"
    for document in reports:
        assert document["engine"]["name"] == "local"
        assert document["totals"]["cleaned"] > 3


def test_a_copy_continues_that_of_the_last_slot(airflow: Airflow, tmp_path: Path) -> None:
    log_dir, copies = unpack_sample(tmp_path), tmp_path / "copies"
    (copies / "20251231T0000").mkdir(parents=True)
    for slot in (SLOT, NEXT_SLOT, NEXT_SLOT):
        found, said = airflow.run(tmp_path, log_dir, slot=slot, copy_dir=str(copies))
        assert found["run"] == "success", said
    assert "done already by the same request" in said
    first, second = sorted(path.parent for path in copies.glob("*/_finished.json"))
    requests = [json.loads((copy / "_finished.json").read_text())["request"] for copy in (first, second)]
    assert [request.get("since") for request in requests] == [None, str(first)]
    reports = [json.loads(path.read_text()) for path in sorted((tmp_path / "reports").iterdir())]
    assert {log["since"] for log in reports[0]["logs"]} == {""}


def test_a_log_that_failed_fails_the_run_and_is_named(airflow: Airflow, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    segment = sorted((log_dir / "orders-1").glob("*.log"))[2]
    data = bytearray(segment.read_bytes())
    data[HEADER_SIZE + 5] ^= 0xFF
    segment.write_bytes(data)
    found, said = airflow.run(tmp_path, log_dir)
    assert found["run"] == "failed"
    assert found["tasks"]["check_report"] == "failed"
    assert "1 log failed: orders-1: " in said
    (report,) = (tmp_path / "reports").iterdir()
    # the report is that of the last attempt: the first one had cleaned the other logs
    assert json.loads(report.read_text())["totals"]["failed"] == 1
    checkpoint = (log_dir / "cleaner-offset-checkpoint").read_text()
    assert "orders 0 " in checkpoint
    assert "orders 1 " not in checkpoint


@pytest.mark.parametrize(
    ("directory", "more", "texts"),
    [
        ("no-such-directory", {}, ["the job wrote no report", "no retry would help"]),
        (
            "",
            {"environment": "/no/such/environment"},
            ["/no/such/environment/bin/python does not exist: set the parameter 'environment'"],
        ),
    ],
    ids=["no logs", "incomplete environment"],
)
def test_a_job_that_cannot_run_fails_at_once_and_says_what_is_missing(
    airflow: Airflow, tmp_path: Path, directory: str, more: dict[str, Any], texts: list[str]
) -> None:
    found, said = airflow.run(tmp_path, tmp_path / directory, **more)
    assert found["run"] == "failed"
    assert found["attempts"]["compact"] == 1
    assert [text for text in texts if text not in said] == []


@pytest.mark.parametrize("served", ["", "https://reports.example.org/kafka"])
def test_policies_are_compared_and_the_task_links_to_the_page(airflow: Airflow, tmp_path: Path, served: str) -> None:
    log_dir = unpack_sample(tmp_path)
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    variables = {"AIRFLOW_VAR_KAFKA_LOG_REPORT_URL": served} if served else None
    policies = ["configured", "cleanup.policy=compact,min.cleanable.dirty.ratio=0"]
    found, said = airflow.run(tmp_path, log_dir, "kafka_log_policies", variables, topics=["orders", "users"], policies=policies)
    assert found["tasks"] == {"compare": "success"}, said
    report, page = sorted((tmp_path / "reports").iterdir(), key=lambda path: path.suffix, reverse=True)
    document = json.loads(report.read_text())
    assert [policy["name"] for policy in document["policies"]] == policies
    assert {log["topic"] for log in document["logs"]} <= {"orders", "users"}
    link = found["links"]["compare"]["Comparison of policies"]
    assert link == (f"{served}/{page.name}" if served else page.as_uri())
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before
