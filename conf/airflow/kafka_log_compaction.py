"""Airflow DAGs for Kafka's log directories at rest. For Airflow 3 with its Apache Spark provider.

``kafka_log_compaction`` compacts a backup every night by ``spark-submit``, in place or, with ``copy_dir``, to a copy that
continues the copy of the last slot. ``kafka_log_compaction_local`` has no schedule and
does the same by a task that calls the Python API, without Spark and Java. ``kafka_log_policies`` compares policies, writes
nothing to the logs, and links its task to the page. Put this file into the DAGs folder, and give Airflow

- a pool ``kafka_log_dirs`` of one slot (``airflow pools set kafka_log_dirs 1 "one run at a time"``): runs never share a disk,
- the connection ``spark_default``: the master, ``local[*]`` or a cluster's, with deploy mode ``client``,
- the parameter ``environment``, or the variable ``kafka_log_environment`` as its default: the directory of the Python
  environment in which this project and PySpark are installed. It must not be Airflow's own, because its Spark provider depends
  on ``pyspark-client``, whose files overwrite those of ``pyspark``. ``spark_home`` names another Spark. Neither needs to be on
  ``PATH``.
- for links that a browser opens, the variable ``kafka_log_report_url``: the address under which a web server of yours serves
  ``report_dir``. Without it a link is the page's path as a ``file:`` address, to be copied.

Every slot may be run again, by a retry or by hand: "now" of a run is the end of its data interval, not the clock, so the same
input produces the same bytes, and a run first finishes or undoes the swaps of a stopped one. Tasks that a retry cannot help (an
environment that is incomplete, a call that is wrong) fail at once and say why.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, BaseOperatorLink, Param, TriggerRule, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.timetables.interval import CronDataIntervalTimetable

_LOG = logging.getLogger(__name__)
#: the command's exit code for a call that is wrong: nothing was changed, and another attempt would end in the same way
_USAGE = 2

ENVIRONMENT = "{{ params.environment or var.value.get('kafka_log_environment', '/opt/kafka-log-compaction/.venv') }}"
AS_OF_MS = "{{ data_interval_end.int_timestamp * 1000 }}"
REPORT = "{{ params.report_dir }}/compact-" + AS_OF_MS + ".json"
#: the directory of a slot's copy, in ``copy_dir``; in the order of time
SLOT = "{{ data_interval_end.in_timezone('UTC').strftime('%Y%m%dT%H%M') }}"
#: the record of a finished copy
FINISHED = "_finished.json"
#: of a DAG without a schedule: the time at which it was triggered
TRIGGERED_MS = "{{ (dag_run.run_after.timestamp() * 1000) | int }}"
COMPARISON = "{{ params.report_dir }}/policies-" + TRIGGERED_MS


class PageLink(BaseOperatorLink):
    """From a task to the page that it wrote."""

    name = "Comparison of policies"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address of the page; empty if there is none."""
        page = operator.output_file("--html")
        if page is None or not page.exists():
            return ""
        base = operator.report_url.rstrip("/")
        return f"{base}/{page.name}" if base else page.absolute().as_uri()


class KafkaLogJob(SparkSubmitOperator):
    """Runs an application of this project with the Spark and the Python of its own environment, whatever ``PATH`` has.

    :param command: the application: ``compact``, ``expire``, ``dry_run``
    :param environment: the environment's directory
    :param spark_home: another Spark than the environment's; empty: that one
    :param report_url: where the directory of reports is served; empty: nowhere
    :param copies: the directory of the copies, and the name of this one; empty: none is made
    :param lists: options, and the parameters with their values
    """

    template_fields = (*SparkSubmitOperator.template_fields, "environment", "spark_home", "report_url", "copies")
    operator_extra_links = (PageLink(),)

    def __init__(
        self, *, command: str, environment: str, spark_home: str, report_url: str = "", copies: tuple[str, str] = ("", ""),
        lists: dict[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.command = command
        self.environment = environment
        self.spark_home = spark_home
        self.report_url = report_url
        self.copies = copies
        self.lists = lists or {}

    def execute(self, context: Any) -> None:
        """Runs the application.

        :raises AirflowFailException: nothing that another attempt would change
        """
        self._use_environment()
        for option, parameter in self.lists.items():
            for value in context["params"][parameter]:
                self.application_args += [option, str(value)]
        copies, slot = self.copies
        if copies:
            self.application_args += copy_options(Path(copies), slot)
        for option in ("--report", "--html"):
            # one of an earlier attempt must not be taken for that of this one
            if file := self.output_file(option):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.unlink(missing_ok=True)
        try:
            super().execute(context)
        except AirflowException as error:
            if re.search(rf"Error code is: {_USAGE}\b", str(error)):
                raise AirflowFailException(f"the call is wrong, nothing was changed, no retry would help: {error}") from None
            raise

    def output_file(self, option: str) -> Path | None:
        """The file of an option."""
        arguments = self.application_args or []
        return Path(arguments[arguments.index(option) + 1]) if option in arguments else None

    def _use_environment(self) -> None:
        """Sets the application, and the variables that select Python and Spark."""
        python = Path(self.environment, "bin", "python")
        _require(python, "environment", "the Python environment in which kafka-log-compaction is installed")
        libraries = sorted(Path(self.environment).glob("lib/python3*/site-packages"))
        spark = Path(self.spark_home) if self.spark_home else next((path / "pyspark" for path in libraries), python)
        _require(spark / "bin" / "spark-submit", "spark_home", "a Spark, with bin/spark-submit")
        java_home = os.environ.get("JAVA_HOME")
        java = shutil.which("java", path=str(Path(java_home, "bin")) if java_home else None)
        if java is None:
            found = f"nothing in JAVA_HOME={java_home}" if java_home else "JAVA_HOME is not set, and there is none on the path"
            raise AirflowFailException(f"no Java: {found}; install Java 17 or newer, or set JAVA_HOME for Airflow's workers")
        if not self.application:
            installed = [path / "compaction" / "jobs" / f"{self.command}.py" for path in libraries]
            checkout = Path(self.environment).parent / "jobs" / f"{self.command}.py"
            self.application = str(next((path for path in [*installed, checkout] if path.exists()), checkout))
        _require(Path(self.application), "application", f"{self.command}.py of this project's jobs")
        self.env_vars = {
            **(self.env_vars or {}),
            "SPARK_HOME": str(spark),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "PATH": os.pathsep.join([str(spark / "bin"), os.environ.get("PATH", os.defpath)]),
        }


def copy_options(copies: Path, slot: str) -> list[str]:
    """The options of a slot's copy, which continues that of the last good slot, if there is one. A slot that is run again
    continues the same one."""
    options = ["--output-dir", str(copies / slot), "--if-done", "skip", "--replace"]
    try:
        since = json.loads((copies / slot / FINISHED).read_text(encoding="utf-8"))["request"].get("since")
    except FileNotFoundError:
        earlier = [path.parent for path in copies.glob(f"*/{FINISHED}") if path.parent.name < slot]
        since = max(earlier, default=None)
    return options if since is None else [*options, "--since", str(since)]


def _require(path: Path, parameter: str, what: str) -> None:
    if not path.is_absolute() or not path.exists():
        raise AirflowFailException(f"{path} does not exist: set the parameter {parameter!r} to the absolute path of {what}")


def common_params(report_dir: str) -> dict[str, Param]:
    """The parameters of both DAGs."""
    return {
        "log_dir": Param("/backup/kafka/data", type="string", description="the log directory"),
        "report_dir": Param(report_dir, type="string", description="where reports are kept"),
        "kafka_version": Param("auto", type="string", description="whose rules apply: the version of the brokers, or auto"),
        "environment": Param(
            "", type="string", title="Python environment",
            description="the environment with this project; empty: the variable kafka_log_environment",
        ),
        "spark_home": Param("", type="string", description="another Spark than that environment's"),
        "application": Param("", type="string", description="the application; empty: that of the environment or its checkout"),
    }  # fmt: skip


#: of both tasks
JOB = {
    "conn_id": "spark_default",
    "environment": ENVIRONMENT,
    "spark_home": "{{ params.spark_home }}",
    "application": "{{ params.application }}",
    "pool": "kafka_log_dirs",
    "execution_timeout": timedelta(hours=6),
}

with DAG(
    dag_id="kafka_log_compaction",
    description="Compact Kafka log directories at rest",
    schedule=CronDataIntervalTimetable("10 2 * * *", timezone="UTC"),
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    # one run at a time per directory; its lock would refuse a second one
    max_active_runs=1,
    default_args={"owner": "kafka", "retries": 2, "retry_delay": timedelta(minutes=5)},
    params={
        **common_params("/var/log/kafka-log-compaction"),
        "copy_dir": Param("", type="string", description="the directory of the copies, one for each slot; empty: in place"),
        "min_ratio": Param(0.5, type="number", minimum=0, maximum=1, description="clean a log if its dirty ratio is larger"),
    },
    tags=["kafka"],
    doc_md=__doc__,
):
    compact = KafkaLogJob(
        **JOB,
        task_id="compact",
        command="compact",
        name="compact-{{ ds_nodash }}",
        copies=("{{ params.copy_dir }}", SLOT),
        application_args=[
            *("--log-dir", "{{ params.log_dir }}"),
            *("--as-of-ms", AS_OF_MS),
            *("--kafka-version", "{{ params.kafka_version }}"),
            *("--set", "min.cleanable.dirty.ratio={{ params.min_ratio }}"),
            *("--report", REPORT),
        ],
    )

    # also if the job failed: its report says which logs failed, the others are done
    @task(task_id="check_report", trigger_rule=TriggerRule.ALL_DONE, retries=0)
    def check_report(report: str) -> dict[str, Any]:
        """The totals of the run.

        :raises AirflowFailException: there is no report, or a log failed
        """
        try:
            found = json.loads(Path(report).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise AirflowFailException(f"the job wrote no report: see the log of its task ({error})") from None
        totals: dict[str, Any] = found["totals"]
        _LOG.info("%s", totals)
        failed = [f"{log['topic']}-{log['partition']}: {log['reason']}" for log in found["logs"] if log["status"] == "failed"]
        if failed:
            count = "1 log" if len(failed) == 1 else f"{len(failed)} logs"
            raise AirflowFailException(f"{count} failed: " + "; ".join(failed))
        return totals

    compact >> check_report(REPORT)

with DAG(
    dag_id="kafka_log_compaction_local",
    description="Compact Kafka log directories at rest in worker processes of this machine",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "kafka", "retries": 2, "retry_delay": timedelta(minutes=5)},
    params=common_params("/var/log/kafka-log-compaction"),
    tags=["kafka"],
    doc_md=__doc__,
):

    @task.external_python(
        task_id="compact",
        python=ENVIRONMENT + "/bin/python",
        expect_airflow=False,
        pool="kafka_log_dirs",
        execution_timeout=timedelta(hours=6),
    )
    def compact_locally(log_dir: str, as_of_ms: str, kafka_version: str, report_file: str) -> dict[str, Any]:
        """The totals of the run. Runs in the environment of this project, so that it imports all that it uses."""
        from pathlib import Path

        import compaction

        report = compaction.compact(log_dir, as_of=int(as_of_ms), kafka_version=kafka_version, engine="local")
        Path(report_file).parent.mkdir(parents=True, exist_ok=True)
        Path(report_file).write_text(report.to_json(), encoding="utf-8")
        if report.exit_code:
            raise RuntimeError(str(report))
        return dict(report.totals)

    compact_locally(
        "{{ params.log_dir }}", TRIGGERED_MS, "{{ params.kafka_version }}",
        "{{ params.report_dir }}/compact-" + TRIGGERED_MS + ".json",
    )  # fmt: skip

with DAG(
    dag_id="kafka_log_policies",
    description="Compare cleanup policies on Kafka log directories at rest; nothing is written to the logs",
    # triggered by hand, with the policies as parameters
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "kafka", "retries": 1, "retry_delay": timedelta(minutes=5)},
    params={
        **common_params("/var/log/kafka-log-compaction"),
        "topics": Param([], type="array", items={"type": "string"}, description="regular expressions; none: all topics"),
        "policies": Param(
            ["configured", "cleanup.policy=compact"], type="array", items={"type": "string"}, minItems=1,
            description='"configured", or settings separated by commas, as for --policy',
        ),
    },
    tags=["kafka"],
    doc_md=__doc__,
):  # fmt: skip
    KafkaLogJob(
        **JOB,
        task_id="compare",
        command="dry_run",
        name="policies-{{ run_id }}",
        report_url="{{ var.value.get('kafka_log_report_url', '') }}",
        application_args=[
            *("--log-dir", "{{ params.log_dir }}"),
            *("--as-of-ms", TRIGGERED_MS),
            *("--kafka-version", "{{ params.kafka_version }}"),
            *("--report", COMPARISON + ".json"),
            *("--html", COMPARISON + ".html"),
        ],
        lists={"--topic": "topics", "--policy": "policies"},
    )
