"""A session with settings of its own gets a virtual machine that has them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext

from clonos.bench import nexmark_spark, run

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("new_jvm")]


def heap_and_collectors(spark):
    jvm = spark._jvm.java.lang
    beans = jvm.management.ManagementFactory.getGarbageCollectorMXBeans()
    return jvm.Runtime.getRuntime().maxMemory(), {bean.getName() for bean in beans}


def test_a_heap_is_that_of_a_new_virtual_machine():
    with run.session("local[2]") as spark:
        earlier, _ = heap_and_collectors(spark)
        gateway: Any = SparkContext._gateway
        process = gateway.proc
    assert process.poll() is None
    with nexmark_spark.session(2) as spark:
        heap, collectors = heap_and_collectors(spark)
        assert process.poll() is not None
    assert heap != earlier
    assert 2.5e9 < heap < 3.3e9
    assert "PS Scavenge" in collectors
    assert SparkContext._gateway is None  # nobody else is given this one
