"""Tools to test operators and functions without Spark.

Examples
--------
>>> import clonos
>>> from clonos.testing import StepHarness, rows
>>> job = clonos.Job()
>>> lines = job.source(clonos.sources.from_batches([], schema="value string"), name="lines")
>>> lines.flat_map(lambda row: row.value.split(), schema="word string").sink(
...     clonos.sinks.collect()
... )
>>> harness = StepHarness(job.compile().codes[0].program())
>>> rows(harness.source([("to be",)], "value string").batches[0])
[('to',), ('be',)]
"""

from clonos.simulator.user_job import CannotSimulate, Simulation, SimulationFailed, simulate
from clonos.testing.determinism import (
    Checked,
    Finding,
    NotDeterministic,
    check_deterministic,
)
from clonos.testing.harness import (
    Answers,
    Batches,
    End,
    Event,
    Source,
    StepHarness,
    StepOutput,
    Tick,
    Watermark,
    check_restore,
    rows,
    task_code,
)
from clonos.testing.in_memory import InMemoryRun
from clonos.testing.past import PastRun, run_past
from clonos.testing.sinks import SinkReport, check_sink

__all__ = [
    "Answers",
    "Batches",
    "CannotSimulate",
    "Checked",
    "End",
    "Event",
    "Finding",
    "InMemoryRun",
    "NotDeterministic",
    "PastRun",
    "Simulation",
    "SimulationFailed",
    "SinkReport",
    "Source",
    "StepHarness",
    "StepOutput",
    "Tick",
    "Watermark",
    "check_deterministic",
    "check_restore",
    "check_sink",
    "rows",
    "run_past",
    "simulate",
    "task_code",
]


def __dir__() -> list[str]:
    return __all__
