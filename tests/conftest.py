"""What holds for all tests: which Python Spark's workers use, and a JVM per module."""

import os
import sys
from pathlib import Path

import pyspark
import pytest

from clonos_bench.run import end_jvm

ROOT = Path(__file__).parent.parent

# Processes that tests start, Spark's workers among them, import what the tests import.
SOURCES = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks" / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])]
)

# The first session's JVM serves all that follow, and reads these once.
os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def new_jvm() -> None:
    """A module that makes a session gets a JVM of its own: nothing is left of another's."""
    end_jvm()
