"""Run the notebook of the fraud example, and write down what it shows.

    python scripts/notebook.py [--out PATH]

Without `--out` the notebook's own outputs are renewed. What Spark says while it starts is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

PATH: Final = Path(__file__).resolve().parents[1] / "examples" / "fraud" / "fraud.ipynb"
CELL_S: Final = 240
"""How long a cell may take."""


def executed(path: Path) -> Any:
    """The notebook with new outputs. Its kernel is this Python, whatever else is installed."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    specs = KernelSpecManager(kernel_dirs=[])
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, km=manager, timeout=CELL_S, resources=resources)
    client.execute(cleanup_kc=True)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each cell ran
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)  # of this machine's Python
    return notebook


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PATH)
    out = parser.parse_args().out
    nbformat.write(executed(PATH), out)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
