"""Run by Airflow's own Python: loads a DAG from its folder, runs it once and prints the state of each task as JSON."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any


def main(folder: str, dag_id: str, logical_date: str, settings: str, told: str) -> None:
    """Runs the DAG of ``folder`` for the slot of ``logical_date`` with ``settings`` (JSON) as its parameters."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(folder)
    if bag.import_errors:
        raise SystemExit(str(bag.import_errors))
    dag = bag.dags[dag_id]
    found: dict[str, Any] = {
        "dags": sorted(bag.dags),
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "pools": {task.task_id: task.pool for task in dag.tasks},
        "retries": {task.task_id: task.retries for task in dag.tasks},
        "downstream": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
    }
    for each in dag.tasks:
        # a test must not wait for minutes
        each.retry_delay = timedelta(seconds=1)
    date = datetime.fromisoformat(logical_date).astimezone(timezone.utc)
    run = dag.test(logical_date=date, run_conf=json.loads(settings))
    found["run"] = str(run.state.value if hasattr(run.state, "value") else run.state)
    found["end"] = run.data_interval_end.isoformat() if run.data_interval_end else None
    tasks = run.get_task_instances()
    found["tasks"] = {task.task_id: str(getattr(task.state, "value", task.state)) for task in tasks}
    found["attempts"] = {task.task_id: task.try_number for task in tasks}
    # as the web interface finds them: from the serialized DAG
    found["links"] = {task.task_id: links_of(dag, task) for task in tasks}
    Path(told).write_text(json.dumps(found), encoding="utf-8")


def links_of(dag: Any, instance: Any) -> dict[str, str]:
    """The links of a task by name."""
    from airflow.serialization.serialized_objects import DagSerialization

    # the scheduler, which dag.test() resembles, loads DAGs without links
    DagSerialization._load_operator_extra_links = True
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task(instance.task_id)
    return {name: serialized.get_extra_links(instance, name) for name in serialized.extra_links}


if __name__ == "__main__":
    main(*sys.argv[1:])
