"""The notebooks run from top to bottom on the sample, draw their charts, and are stored without outputs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLOTS = {"what_is_in_this_log": 3, "reading_a_report": 2}


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PLOTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_the_sample(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_LOG_DIR", "KAFKA_COMPACTION_REPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    images = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    kept = ROOT / "build/notebooks"
    kept.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        (kept / f"{path.stem}-{number}.png").write_bytes(base64.b64decode(image))
    assert len(images) == PLOTS[path.stem]
    assert not [output for output in outputs if output.output_type == "error"]
    assert "orders" in "".join(output.get("text", "") for output in outputs)
