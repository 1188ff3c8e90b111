"""The notebooks run from top to bottom on the sample, draw their charts, and are stored with their outputs.

``pytest --rewrite-golden -m notebook tests/notebooks`` stores them again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import compaction
from tests.golden import unpack_sample
from tests.large_log import replace_log, write_large_log

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
AS_OF = "2026-02-01T00:00Z"
PLOTS = {"what_is_in_this_log": 3, "reading_a_report": 2, "what_if_over_time": 1}


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def run(path: Path, directory: Path) -> tuple[nbformat.NotebookNode, list[nbformat.NotebookNode]]:
    """A notebook after it ran without an error and drew its charts, and the outputs of its cells."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(directory)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PLOTS[path.stem]
    assert not [output for output in outputs if output.output_type == "error"]
    return notebook, outputs


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PLOTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_the_outputs_of_the_sample(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    found = json.dumps([cell["outputs"] for cell in code])
    assert found.count('"image/png"') == PLOTS[path.stem]
    assert any(text in found for text in ("inventory-0", "inventory ", "max.compaction.lag.ms=6h"))
    for private in ("/tmp/", str(Path.home()), str(ROOT), "Traceback"):
        assert private not in found


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_eight_cores_and_gives_the_stored_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Memory for shuffles grows with the cores, the JVM's heap does not."""
    for name in ("KAFKA_LOG_DIR", "KAFKA_COMPACTION_REPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[8] pyspark-shell")
    notebook, _ = run(path, path.parent)
    if request.config.getoption("--rewrite-golden"):
        store(notebook, path)
    assert texts(notebook) == texts(nbformat.read(path, as_version=4))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of the user's, with a log that needs workers."""
    place = tmp_path_factory.mktemp("large")
    log_dir = unpack_sample(place, "orders-0", "users")
    replace_log(log_dir, "orders", write_large_log(place / "log", step_ms=3_600_000) / "orders-0")
    return log_dir


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_a_log_of_the_user_that_needs_workers(
    path: Path, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("KAFKA_LOG_DIR", str(large))
    report = compaction.compact(large, output_dir=tmp_path / "copy", as_of=AS_OF)
    (tmp_path / "report.json").write_text(report.to_json())
    monkeypatch.setenv("KAFKA_COMPACTION_REPORT", str(tmp_path / "report.json"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    _, outputs = run(path, tmp_path)
    assert ("MB at most" if path.stem == "what_if_over_time" else "orders") in json.dumps(outputs)


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Writes a notebook without what differs from run to run."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell prints and returns as text, except for the names of figures' classes and durations."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept = [output for output in cell.outputs if output.get("name") != "stderr"]
            shown = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in kept)
            found.append(re.sub(r"(seconds\W*) [\d.]+", r"\1 …", " ".join(shown.split())))
    return found
