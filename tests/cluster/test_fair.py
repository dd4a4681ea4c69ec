"""A job beside other work that wants all cores of the application."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from clonos.spark.session import get_or_create

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def fair(new_jvm: None) -> Iterator[SparkSession]:
    session = get_or_create("local[4]", "fair", config={"spark.scheduler.mode": "FAIR"})
    yield session
    session.stop()


def test_a_lost_slot_gets_the_next_free_core(kit, fair, tmp_path):
    """... and not the one after all tasks of a query that has begun before."""
    source = kit.gated(tmp_path, 600)
    job = kit.build(source, standbys=0, parallelism=1, is_fused=True, is_apart=False).start(fair)
    kit.wait_quiet(job)
    done = fair.sparkContext.accumulator(0)

    def step(_: int) -> None:
        time.sleep(1)
        done.add(1)

    def work() -> None:
        fair.sparkContext.parallelize(range(60), 60).foreach(step)

    query = threading.Thread(target=work)
    query.start()
    kit.wait_for(lambda: done.value >= 3)
    kit.kill(job, "running[0]")
    kit.wait_recovered(job, 1)
    assert done.value < 40
    kit.open_tap(tmp_path)
    kit.check(job.wait(600).table(), 600)
    query.join()
