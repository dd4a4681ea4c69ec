"""Causal services for existing PySpark jobs: retried tasks get the same answers.

.. code-block:: python

    from clonos import causal

    log = causal.start(spark, "/data/answers")

    @causal.service
    def judge(text):
        return requests.post(URL, json={"text": text}).json()

    df.withColumn("verdict", udf(lambda text: judge(text)["verdict"])("text"))

``@causal`` is short for ``@causal.service``. ``docs/causal.md`` describes the guarantees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from clonos.causal.driver import Log, start
from clonos.causal.process import access, arrived, settle
from clonos.causal.services import Service, call, clock, idempotency_key, operator, random, service
from clonos.causal.sinks import exactly_once, postgres_sink, write_once
from clonos.errors.causal import (
    BelowFloor,
    CausalError,
    Fenced,
    LogBroken,
    LogFull,
    LogUnreachable,
    NotConnected,
    NotIdempotent,
    OnDriver,
    OperatorUsedTwice,
    OtherRows,
    OutsideTask,
    ServiceTooSlow,
    UnsupportedQuery,
    UnsupportedSession,
)

__all__ = [
    "BelowFloor",
    "CausalError",
    "Fenced",
    "Log",
    "LogBroken",
    "LogFull",
    "LogUnreachable",
    "NotConnected",
    "NotIdempotent",
    "OnDriver",
    "OperatorUsedTwice",
    "OtherRows",
    "OutsideTask",
    "Service",
    "ServiceTooSlow",
    "UnsupportedQuery",
    "UnsupportedSession",
    "call",
    "clock",
    "exactly_once",
    "idempotency_key",
    "operator",
    "postgres_sink",
    "random",
    "service",
    "settle",
    "start",
    "write_once",
]


def __dir__() -> list[str]:
    return __all__


class _Module(ModuleType):
    """The type of ``causal``: it carries access to the job's log when Spark ships a function that
    mentions it, and ``@causal`` is short for ``@causal.service``."""

    def __call__(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        return service(fn, **options)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _arrive, (access(),)


def _arrive(shipped: Any) -> ModuleType:
    arrived(shipped)
    return sys.modules[__name__]


sys.modules[__name__].__class__ = _Module
