"""Run by Airflow's own Python: runs a DAG for each line of its standard input, and answers with a line that has the state of
each task, both in JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

#: a test must not wait for many attempts
_MOST_RETRIES = 1


def main() -> None:
    """Answers until its standard input ends."""
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in orders:
        order = json.loads(line)
        with open(order.pop("output"), "wb") as output:  # noqa: PTH123
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ.update(order["variables"])
        print(json.dumps(run(order["folder"], order["dag"], order["slot"], order["settings"])), file=answers, flush=True)
        sys.stdout.flush()
        for name in order["variables"]:
            del os.environ[name]


def run(folder: str, dag_id: str, slot: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Runs the DAG of ``folder`` for the slot of a logical date with ``settings`` as its parameters."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(folder)
    if bag.import_errors:
        return {"import errors": str(bag.import_errors)}
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
        # nor for minutes
        each.retry_delay = timedelta(seconds=1)
        each.retries = min(each.retries, _MOST_RETRIES)
    run = dag.test(logical_date=datetime.fromisoformat(slot).astimezone(timezone.utc), run_conf=settings)
    tasks = run.get_task_instances()
    return {
        **found,
        "run": state(run),
        "end": run.data_interval_end.isoformat() if run.data_interval_end else None,
        "tasks": {task.task_id: state(task) for task in tasks},
        "attempts": {task.task_id: task.try_number for task in tasks},
        # as the web interface finds them: from the serialized DAG
        "links": {task.task_id: links_of(dag, task) for task in tasks},
    }


def state(instance: Any) -> str:
    """The state of a run or a task."""
    return str(getattr(instance.state, "value", instance.state))


def links_of(dag: Any, instance: Any) -> dict[str, str]:
    """The links of a task by name."""
    from airflow.serialization.serialized_objects import DagSerialization

    # the scheduler, which dag.test() resembles, loads DAGs without links
    DagSerialization._load_operator_extra_links = True
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task(instance.task_id)
    return {name: serialized.get_extra_links(instance, name) for name in serialized.extra_links}


if __name__ == "__main__":
    main()
