"""What a slot takes of Spark's executors, and for how many more slots there is room.

Without a profile a slot is a task like any other. With one (PySpark's ``ResourceProfile``), a slot
takes the share of a core that the profile says. Where executors are allocated dynamically, slots
with a profile get executors of their own; otherwise they share those of the application.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

from clonos.errors import SparkSetup

UNBOUNDED_EXECUTORS: Final = 10_000
"""A higher maximum is Spark's way to say that there is none."""

_DEFAULT_PROFILE: Final = 0


@dataclass(frozen=True, slots=True)
class Executor:
    """One executor: its cores, how many tasks the application's own settings let it run, how
    many it runs, for which profile it was made, and Spark's name for it."""

    cores: int
    tasks: int
    active: int
    profile: int = _DEFAULT_PROFILE
    name: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """Slots that run, or wait for a core: how many, and how many cores they take."""

    slots: int = 0
    cores: Decimal = Decimal(0)


class SlotResources:
    """The share of an executor that a slot takes.

    Parameters
    ----------
    spark
        The session.
    profile
        PySpark's resource profile for the slots; None: a slot is a task like any other.

    Raises
    ------
    SparkSetup
        The session's master permits no such profile.

    Attributes
    ----------
    cpus
        Cores per slot. Since Spark 4.3 this may be a fraction.

    Examples
    --------
    >>> SlotResources(spark, profile).cpus  # doctest: +SKIP
    Decimal('0.25')
    """

    def __init__(self, spark: SparkSession, profile: ResourceProfile | None = None) -> None:
        self._context = spark.sparkContext
        self.profile = profile
        self._task_cpus = Decimal(self._setting("spark.task.cpus", "1"))
        self.cpus, self._id = self._task_cpus, _DEFAULT_PROFILE
        self._is_dynamic = self._setting("spark.dynamicAllocation.enabled", "false") == "true"
        if profile is not None:
            _require(spark, profile)
            if (asked := profile.taskResources.get("cpus")) is not None:
                self.cpus = Decimal(str(asked.amount))
            if self._is_dynamic:
                self._id = profile.id

    def _setting(self, key: str, default: str) -> str:
        return (self._context.getConf().get(key) or default).lower()

    @property
    def has_own_executors(self) -> bool:
        """Whether nothing but such slots runs on their executors."""
        return self._id != _DEFAULT_PROFILE

    def in_slots(self, cores: int) -> int:
        """How many slots take as much as tasks that need this many cores."""
        if self.has_own_executors:
            return 0
        if self.profile is None:
            return cores
        return _ceil(cores * self._task_cpus / self.cpus)

    def most(self) -> int | None:
        """For how many slots there would be room if Spark started all the executors it may start
        (None: unlimited)."""
        if not self._is_dynamic:
            raise ValueError("executors are not allocated dynamically")
        executors = self._setting("spark.dynamicAllocation.maxExecutors", "")
        if not executors or int(executors) > UNBOUNDED_EXECUTORS:
            return None
        cores = Decimal(self._setting("spark.executor.cores", "1"))
        if self.profile is not None and (own := self.profile.executorResources.get("cores")):
            cores = Decimal(own.amount)
        return int(executors) * int(cores // self.cpus)

    def room(self, executors: Sequence[Executor], taken: Taken) -> tuple[int | None, int]:
        """For how many slots there is room (None: unlimited), and how many of these are used.

        Parameters
        ----------
        executors
            The application's executors.
        taken
            The application's running slots, of all jobs.
        """
        mine = [e for e in executors if e.profile == self._id]
        capacity = sum(map(self._capacity, mine))
        active = sum(e.active for e in mine)
        if not self.has_own_executors:
            others = max(0, active - taken.slots)
            active = _ceil((others * self._task_cpus + taken.cores) / self.cpus)
        if self._is_dynamic:
            return self.most(), active
        return capacity, active

    def fits(self, executor: Executor) -> bool:
        """Whether an executor has room for one more slot, if all that it runs are slots."""
        return executor.profile == self._id and executor.active < self._capacity(executor)

    def _capacity(self, executor: Executor) -> int:
        return executor.tasks if self.profile is None else int(executor.cores // self.cpus)

    def executors(self) -> list[Executor]:
        """What Spark knows of the application's executors."""
        store = self._context._jsc.sc().statusStore()  # noqa: SLF001 - the REST API's own source
        found = store.executorList(True)
        return [
            Executor(e.totalCores(), e.maxTasks(), e.activeTasks(), e.resourceProfileId(), e.id())
            for e in map(found.apply, range(found.size()))
        ]


def _ceil(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_CEILING))


def _require(spark: SparkSession, profile: ResourceProfile) -> None:
    """Make sure that slots may have a profile, by asking Spark."""
    if not isinstance(profile, ResourceProfile):
        raise SparkSetup(
            f"profile={profile!r} is no ResourceProfile",
            remedy="build one: pyspark.resource.ResourceProfileBuilder().require("
            "TaskResourceRequests().cpus(0.5)).build",
        )
    ask: Callable[[ResourceProfile], Any] = spark.sparkContext.parallelize([None], 1).withResources
    try:
        ask(profile)
    except (Py4JJavaError, PySparkException) as error:
        cause = getattr(error, "java_exception", None)
        said = str(cause.getMessage() if cause is not None else error).splitlines()[0]
        raise SparkSetup(
            f"slots cannot have this resource profile here: {said}",
            remedy="profiles need a standalone master, YARN or Kubernetes, and profiles with "
            "executor resources also spark.dynamicAllocation.enabled=true; elsewhere set "
            "spark.task.cpus when you create the session (it may be a fraction since Spark 4.3)",
        ) from error
