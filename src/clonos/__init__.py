"""Clonos: long-running, exactly-once Python streaming inside Spark.

Names are imported when they are first used: the protocol in :mod:`clonos.core` can be imported
without Arrow, NumPy or Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clonos.version import VERSION

if TYPE_CHECKING:
    from clonos import causal, errors, sinks, sources, testing
    from clonos.api.aggregates import avg, count, max, min, sum  # noqa: A004 - as in PySpark
    from clonos.api.job import Job
    from clonos.api.keyed import KeyedStream
    from clonos.api.streams import Stream
    from clonos.api.windows import asc, between, desc, session, sliding, tumbling
    from clonos.branch import Branch
    from clonos.branch.bundling import bundle
    from clonos.causal.services import service
    from clonos.cluster.driver import RunningJob
    from clonos.cluster.listener import Listener
    from clonos.columns.rows import Row
    from clonos.errors import ClonosError, Fenced
    from clonos.nodes.views import Recovery
    from clonos.operators.calls.budget import Budget
    from clonos.operators.calls.cache import Cache
    from clonos.operators.calls.effects import Effect, EffectCall, Made, NotMade, effect
    from clonos.operators.calls.service import Service
    from clonos.operators.context import Context
    from clonos.operators.process.process import Process, ProcessContext
    from clonos.replay import Replay

__version__ = VERSION

_HOMES = {
    "Branch": "clonos.branch",
    "Budget": "clonos.operators.calls.budget",
    "Cache": "clonos.operators.calls.cache",
    "ClonosError": "clonos.errors",
    "Context": "clonos.operators.context",
    "Effect": "clonos.operators.calls.effects",
    "EffectCall": "clonos.operators.calls.effects",
    "Fenced": "clonos.errors",
    "Job": "clonos.api.job",
    "KeyedStream": "clonos.api.keyed",
    "Listener": "clonos.cluster.listener",
    "Made": "clonos.operators.calls.effects",
    "NotMade": "clonos.operators.calls.effects",
    "Process": "clonos.operators.process.process",
    "ProcessContext": "clonos.operators.process.process",
    "Recovery": "clonos.nodes.views",
    "Replay": "clonos.replay",
    "Row": "clonos.columns.rows",
    "RunningJob": "clonos.cluster.driver",
    "Service": "clonos.operators.calls.service",
    "Stream": "clonos.api.streams",
    "avg": "clonos.api.aggregates",
    "bundle": "clonos.branch.bundling",
    "count": "clonos.api.aggregates",
    "effect": "clonos.operators.calls.effects",
    "max": "clonos.api.aggregates",
    "min": "clonos.api.aggregates",
    "service": "clonos.causal.services",
    "sum": "clonos.api.aggregates",
    **dict.fromkeys(
        ("asc", "between", "desc", "session", "sliding", "tumbling"), "clonos.api.windows"
    ),
}
_MODULES = {
    "causal": "clonos.causal",
    "errors": "clonos.errors",
    "sinks": "clonos.sinks",
    "sources": "clonos.sources",
    "testing": "clonos.testing",
}

__all__ = [
    "Branch",
    "Budget",
    "Cache",
    "ClonosError",
    "Context",
    "Effect",
    "EffectCall",
    "Fenced",
    "Job",
    "KeyedStream",
    "Listener",
    "Made",
    "NotMade",
    "Process",
    "ProcessContext",
    "Recovery",
    "Replay",
    "Row",
    "RunningJob",
    "Service",
    "Stream",
    "asc",
    "avg",
    "between",
    "bundle",
    "causal",
    "count",
    "desc",
    "effect",
    "errors",
    "max",
    "min",
    "service",
    "session",
    "sinks",
    "sliding",
    "sources",
    "sum",
    "testing",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'clonos' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
