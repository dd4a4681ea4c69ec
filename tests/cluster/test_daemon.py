"""What a slot needs is imported before Spark forks, and nothing else; all of it survives a fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from pyspark import cloudpickle  # as Spark ships functions

import clonos
from clonos.cluster.shipping import ship
from clonos.transport.secret import JobSecret

FORKS_WELL = {"jemalloc_bg_thd"}
"""Threads that may be there when Spark forks: jemalloc has handlers for it."""
IMPORTED_MAX = 322
"""Modules beyond those of PySpark's worker and of pandas, which Arrow imports. NumPy and PyArrow
are about a third."""


def run(program: str) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as Spark sets it
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    return json.loads(said.stdout)


@pytest.fixture(scope="module")
def imported() -> Any:
    """Modules of our daemon beyond those of PySpark's worker, and of a slot beyond those."""
    return run(
        "import json, sys\n"
        "import pyspark.daemon, pyspark.worker; spark = set(sys.modules)\n"
        "import clonos.cluster.daemon; daemon = set(sys.modules)\n"
        "import clonos.runtime.slot, clonos.runtime.loop, clonos.spark.identity\n"
        "import pyarrow as pa\n"
        "pa.array(['text', None]).to_numpy(zero_copy_only=False)\n"  # of a first step
        "slot = set(sys.modules)\n"
        "print(json.dumps([sorted(daemon - spark), sorted(slot - daemon)]))"
    )


def test_a_slot_has_nothing_left_to_import(imported):
    daemon, slot = imported
    assert slot == []
    assert {"clonos.runtime.slot", "pyarrow.compute", "numpy"} <= set(daemon)


def test_nothing_is_imported_that_a_slot_does_not_need(imported):
    daemon, _ = imported
    said = run(
        "import json, sys\n"
        "import numpy, pyarrow.compute; before = set(sys.modules)\n"
        "import pandas\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    imported_by_pandas = {name.partition(".")[0] for name in said} - {"clonos", "pyspark"}
    tops = {name.partition(".")[0] for name in daemon}
    assert not tops & {"polars", "scipy", "cryptography", "sklearn", "torch"}
    for name in ("pyarrow.dataset", "pyarrow.flight", "clonos.api", "clonos.cluster.driver"):
        assert name not in daemon
    assert not [name for name in daemon if name.startswith("clonos.sinks.postgres")]
    ours = [name for name in daemon if name.partition(".")[0] not in imported_by_pandas]
    assert len(ours) <= IMPORTED_MAX, f"{len(ours)} modules: {ours}"


def test_what_is_shipped_to_a_slot_imports_no_more(tmp_path):
    """Each process of a slot would import it anew, before its task is restored."""
    job = clonos.Job("words")
    rows = clonos.sources.from_batches([], "n long")
    job.source(rows).map(lambda row: row, "n long").key_by("n").sink(clonos.sinks.collect())
    compiled = job.compile()
    shipment = ship(
        compiled, "words-1", JobSecret.new(), "there:1", "layers",
        layers_durability="process", lineage="", run="", began={},
    )  # fmt: skip
    (tmp_path / "shipment").write_bytes(cloudpickle.dumps(shipment))
    new = run(
        "import json, pathlib, pickle, sys\n"
        "import clonos.cluster.daemon; before = set(sys.modules)\n"
        f"shipment = pickle.loads(pathlib.Path({str(tmp_path / 'shipment')!r}).read_bytes())\n"
        "for task, program in shipment.programs.items(): program()\n"
        "shipment.readers[0](None)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert not [name for name in new if name.startswith("clonos.")], new


def test_the_garbage_collector_does_not_look_at_what_is_imported():
    looked_at, imported = run(
        "import gc, json\n"
        "import clonos.cluster.daemon\n"
        "print(json.dumps([len(gc.get_objects()), gc.get_freeze_count()]))"
    )
    assert looked_at < imported / 100


@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc")
def test_the_daemon_has_no_threads_that_a_fork_would_lose():
    names = run(
        "import json, pathlib\n"
        "import clonos.cluster.daemon\n"
        "tasks = pathlib.Path('/proc/self/task').iterdir()\n"
        "print(json.dumps([(task / 'comm').read_text().strip() for task in tasks]))"
    )
    assert len([name for name in names if name not in FORKS_WELL]) == 1, names


def test_what_it_has_imported_works_in_a_fork():
    """Several at a time, each with threads of Arrow and matrices of NumPy."""
    statuses = run(
        "import json, os\n"
        "import clonos.cluster.daemon, numpy as np, pyarrow as pa, pyarrow.compute as pc\n"
        "def work():\n"
        "    table = pa.table({'k': np.arange(200_000) % 7, 'v': np.random.random(200_000)})\n"
        "    sums = table.group_by('k').aggregate([('v', 'sum')])\n"
        "    matrix = np.random.random((300, 300))\n"
        "    np.linalg.inv(matrix @ matrix.T + np.eye(300))\n"
        "    for name in pa.supported_memory_backends():\n"
        "        pool = getattr(pa, name + '_memory_pool')()\n"
        "        pc.sort_indices(pa.array(np.random.random(100_000)), memory_pool=pool)\n"
        "    return sums.num_rows == 7\n"
        "children = []\n"
        "for _ in range(4):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        os._exit(0 if work() else 1)\n"
        "    children.append(pid)\n"
        "print(json.dumps([os.waitpid(pid, 0)[1] for pid in children]))"
    )
    assert statuses == [0] * 4
