"""What holds for all tests: which Python Spark's workers use, and a JVM per module."""

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
