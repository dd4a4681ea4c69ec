"""Plans of jobs on Spark Connect, and as parts of a declarative pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyspark
import pytest

import clonos

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
START_MS = 1_704_067_200_000
EXPECTED = {
    "functions": 74,
    "windows": 15,
    "top": 5,
    "look_up": 5,
    "join": sum(abs(a - b) <= 10 and a % 3 == b % 3 for a in range(100) for b in range(100)),
    "batch": 100,
    "stream": 100,
    "asking": 190,
}
REFUSED = {"column": "SparkSetup", "group": "SparkSetup", "callback": "NotInSpark"}


def environment() -> dict[str, str]:
    """Of a process whose server and workers find this clonos."""
    paths = [str(Path(clonos.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {
        **os.environ,
        **python,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(*command: str, folder: Path) -> None:
    """Run a command to its end."""
    done = subprocess.run(
        command,
        env={**environment(), "CLONOS_TEST_FOLDER": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_what_works_on_spark_connect_and_what_is_refused(tmp_path):
    pytest.importorskip("grpc_status")
    run(sys.executable, str(HERE / "connected.py"), str(tmp_path), folder=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name: found[name] for name in EXPECTED} == EXPECTED
    refused = {name: said.partition(":")[0] for name, said in found.items() if name not in EXPECTED}
    assert refused == REFUSED


def test_in_a_declarative_pipeline(tmp_path):
    pytest.importorskip("grpc_status")
    yaml = pytest.importorskip("yaml")
    at = pa.array([START_MS + 100 * i for i in range(100)], pa.timestamp("ms", "UTC"))
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": range(100), "at": at.cast(pa.timestamp("us", "UTC"))}),
                   tmp_path / "in" / "rows.parquet")  # fmt: skip
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "pipeline.py").write_text((HERE / "pipeline.py").read_text())
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    spec = {
        "name": "parts",
        "storage": (tmp_path / "storage").as_uri(),
        "libraries": [{"glob": {"include": "parts/**"}}],
        "configuration": settings,
    }
    (tmp_path / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    home = Path(pyspark.__file__).parent
    run(str(home / "bin" / "spark-pipelines"), "run", folder=tmp_path)
    read = ds.dataset(tmp_path / "spark-warehouse" / "doubled", format="parquet").to_table()
    assert sorted(read.column("twice").to_pylist()) == [2 * n for n in range(100)]
    read = ds.dataset(tmp_path / "spark-warehouse" / "total", format="parquet").to_table()
    assert read.to_pylist() == [{"total": 9900}]
    # The last window is not over yet.
    expected = [(k, 10) for k in (0, 1) for _ in range(4)]
    files = [str(path) for path in (tmp_path / "table").rglob("*.arrow")]
    rows = [row for path in files for row in pa.ipc.open_file(path).read_all().to_pylist()]
    assert sorted((row["k"], row["n"]) for row in rows) == expected
