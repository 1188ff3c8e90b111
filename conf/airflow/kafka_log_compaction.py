"""An Airflow DAG that compacts a backup of Kafka's log directories every night. For Airflow 3 with its Apache Spark provider.

Put this file into the DAGs folder, and give Airflow

- a pool ``kafka_log_dirs`` of one slot (``airflow pools set kafka_log_dirs 1 "one run at a time"``): runs never share a disk,
- the connection ``spark_default``: the master, ``local[*]`` or a cluster's,
- on its workers' ``PATH`` the ``spark-submit`` of the environment in which this project is installed. Install Airflow itself in
  another environment: its Spark provider depends on ``pyspark-client``, whose files overwrite those of ``pyspark``.

Every slot may be run again, by a retry or by hand: "now" of a run is the end of its data interval, not the clock, so the same
input produces the same bytes, and a run first finishes or undoes the swaps of a stopped one.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param, TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.timetables.interval import CronDataIntervalTimetable

_LOG = logging.getLogger(__name__)

AS_OF_MS = "{{ data_interval_end.int_timestamp * 1000 }}"
REPORT = "{{ params.report_dir }}/compact-" + AS_OF_MS + ".json"


def forget_report(context: Any) -> None:
    """Before each attempt: removes the report of an earlier one, which must not be taken for that of this one."""
    arguments = context["ti"].task.application_args
    report = Path(arguments[arguments.index("--report") + 1])
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)


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
        "application": Param("/opt/kafka-log-compaction/jobs/compact.py", type="string", description="jobs/compact.py"),
        "log_dir": Param("/backup/kafka/data", type="string", description="the log directory to compact"),
        "min_ratio": Param(0.5, type="number", description="clean a log if its dirty ratio is larger"),
        "report_dir": Param("/var/log/kafka-log-compaction", type="string", description="where reports are kept"),
    },
    tags=["kafka"],
    doc_md=__doc__,
) as dag:
    compact = SparkSubmitOperator(
        task_id="compact",
        name="compact-{{ ds_nodash }}",
        conn_id="spark_default",
        application="{{ params.application }}",
        application_args=[
            *("--log-dir", "{{ params.log_dir }}"),
            *("--as-of-ms", AS_OF_MS),
            *("--set", "min.cleanable.dirty.ratio={{ params.min_ratio }}"),
            *("--report", REPORT),
        ],
        pool="kafka_log_dirs",
        pre_execute=forget_report,
        execution_timeout=timedelta(hours=6),
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
            raise AirflowFailException(f"{len(failed)} logs failed: " + "; ".join(failed))
        return totals

    compact >> check_report(REPORT)
