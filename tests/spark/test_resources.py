"""For how many slots there is room, without a JVM."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfile,
    TaskResourceRequests,
)

from clonos.spark.resources import Executor, SlotResources, Taken


class Context:
    """As much of a SparkContext as is asked."""

    def __init__(self, **settings: str) -> None:
        self._settings = {key.replace("_", "."): value for key, value in settings.items()}

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - PySpark's name
        return self

    def getConf(self) -> Any:  # noqa: N802 - PySpark's name
        return self._settings

    def parallelize(self, rows: Any, partitions: int) -> Any:
        return self

    def withResources(self, profile: Any) -> Any:  # noqa: N802 - PySpark's name
        return self


def profile(cpus: float, cores: int | None = None) -> ResourceProfile:
    tasks = TaskResourceRequests(None, {})
    tasks.cpus(cpus)
    executors = ExecutorResourceRequests(None, {})
    if cores is not None:
        executors.cores(cores)
    made = ResourceProfile(_exec_req=executors.requests, _task_req=tasks.requests)
    made._id = 7
    return made


def room(resources: SlotResources, executors: list[Executor], *taken: Any) -> Any:
    cores = sum((slots * Decimal(cpus) for slots, cpus in taken), Decimal(0))
    return resources.room(executors, Taken(sum(slots for slots, _ in taken), cores))


def made(given: ResourceProfile | None = None, **settings: str) -> SlotResources:
    context: Any = Context(**settings)
    return SlotResources(context, given)


def test_without_a_profile_a_slot_is_a_task():
    resources = made(spark_task_cpus="0.5")
    executors = [Executor(0, 0, 0), Executor(4, 8, 3), Executor(4, 8, 0)]
    assert room(resources, executors, (3, "0.5")) == (16, 3)
    assert room(resources, executors, (5, "0.5")) == (16, 5)  # Spark has not counted two
    assert resources.in_slots(1) == 1


def test_slots_with_a_profile_share_executors_with_other_tasks():
    resources = made(profile(0.3), spark_task_cpus="2")
    assert resources.cpus == Decimal("0.3")
    executors = [Executor(4, 2, 6), Executor(1, 0, 1)]
    # Six of the seven tasks are slots, four of them of a whole core; the seventh takes two.
    assert room(resources, executors, (2, "0.3"), (4, "1")) == (13 + 3, 22)
    assert resources.in_slots(1) == 7


@pytest.mark.parametrize(("most", "expected"), [("3", 3 * 16), ("", None), ("100000", None)])
def test_executors_of_their_own(most, expected):
    resources = made(
        profile(0.5, cores=8),
        spark_dynamicAllocation_enabled="true",
        spark_dynamicAllocation_maxExecutors=most,
        spark_executor_cores="2",
    )
    executors = [Executor(2, 2, 2), Executor(8, 8, 5, profile=7)]
    assert room(resources, executors, (5, "0.5"), (3, "1")) == (expected, 5)
    assert resources.in_slots(1) == 0


def test_executors_of_other_profiles_do_not_count():
    resources = made()
    executors = [Executor(2, 2, 1), Executor(8, 8, 5, profile=7)]
    assert room(resources, executors, (1, "1")) == (2, 1)


def test_which_executors_have_room_for_a_slot():
    resources, driver, other = made(), Executor(0, 0, 0), Executor(8, 8, 5, profile=7)
    few = [driver, Executor(2, 2, 1), Executor(2, 2, 2), other]
    assert [resources.fits(each) for each in few] == [False, True, False, False]
    large = made(profile(2), spark_task_cpus="1")
    few = [driver, Executor(4, 4, 1), Executor(4, 4, 2), other]
    assert [large.fits(each) for each in few] == [False, True, False, False]
