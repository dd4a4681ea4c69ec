"""The example's notebook runs, and what it shows is a good verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "fraud" / "fraud.ipynb"
JUDGED = 13


def verdict(notebook):
    (cell,) = (one for one in notebook.cells if "verdict" in one.metadata.get("tags", ()))
    (output,) = cell.outputs
    return output["data"]["text/plain"]


def is_good(said):
    lines = said.splitlines()
    return "FAULT" not in said and sum(line.rstrip().endswith(" ok") for line in lines) == JUDGED


def test_what_is_shown_is_a_good_verdict():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert is_good(verdict(notebook))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [cell for cell in cells if "error" in {one.output_type for one in cell.outputs}]


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.usefixtures("new_jvm")  # two would need more memory
def test_the_notebook_runs(tmp_path):
    out = tmp_path / "fraud.ipynb"
    command = [sys.executable, ROOT / "scripts" / "notebook.py", "--out", out]
    subprocess.run(command, check=True, timeout=240)
    found = nbformat.read(out, as_version=4)
    assert is_good(verdict(found)), verdict(found)
