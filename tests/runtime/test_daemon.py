"""What a slot imports: as little as possible, and the most of it before Spark forks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

THREADED = {"numpy", "pandas", "pyarrow"}
"""They start threads as they are imported."""
SHARED_MIN = 40
"""Modules that a slot does not have to import because the daemon has."""
OWN_MAX = 230
"""Modules that a slot imports by itself, of which NumPy and PyArrow are about half."""


@pytest.fixture(scope="module")
def imported() -> Any:
    """Modules of PySpark's daemon, of ours, and of a slot; native threads of our daemon."""
    program = (
        "import json, os, sys\n"
        "import pyspark.daemon; spark = set(sys.modules)\n"
        "import clonos.runtime.daemon; daemon = set(sys.modules)\n"
        "tasks = '/proc/self/task'\n"
        "threads = len(os.listdir(tasks)) if os.path.exists(tasks) else 1\n"
        "import clonos.runtime.slot, clonos.spark.slots; slot = set(sys.modules)\n"
        "print(json.dumps([sorted(daemon - spark), sorted(slot - daemon), threads]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return json.loads(said.stdout)


def test_the_daemon_forks_without_threads(imported):
    daemon, _, threads = imported
    assert threads == 1
    assert not THREADED & set(daemon)


def test_slots_share_what_the_daemon_has_imported(imported):
    daemon, slot, _ = imported
    assert len([name for name in daemon if name.startswith("clonos.")]) >= SHARED_MIN
    assert not set(daemon) & set(slot)


def test_a_slot_imports_nothing_that_it_does_not_need(imported):
    _, slot, _ = imported
    tops = {name.partition(".")[0] for name in slot}
    assert not tops & {"pandas", "polars", "scipy", "cryptography", "pyspark", "sklearn", "torch"}
    assert not {"pyarrow.dataset", "pyarrow.flight", "clonos.api", "clonos.cluster"} & set(slot)
    assert len(slot) <= OWN_MAX, f"{len(slot)} modules: {slot}"
