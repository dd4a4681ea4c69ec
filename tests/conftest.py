"""What holds for all tests: which Python Spark's workers use, and who runs the Spark tests."""

import os
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext

# The first session's JVM serves all that follow, and reads these once.
os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def new_jvm() -> None:
    """A module that makes a session gets a JVM of its own: nothing is left of another's."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        context.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM leaves when it sees this
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all Spark tests in one process when pytest runs several: they share one session."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
