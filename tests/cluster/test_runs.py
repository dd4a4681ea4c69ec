"""Jobs whose start Spark, or the user, ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster import runs
from clonos.errors import SparkStopped


@pytest.mark.parametrize("stops", [True, False])
def test_spark_that_is_stopped_during_a_start(monkeypatch: pytest.MonkeyPatch, stops: bool) -> None:
    """PySpark then lacks attributes, which says nothing to anybody."""
    sc = SimpleNamespace(isStopped=lambda: False)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: sc))
    spark: Any = SimpleNamespace(createDataFrame=None, _jsparkSession=None, sparkContext=context)

    def start(*_: Any) -> Any:
        if stops:
            context._jsc = None
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    monkeypatch.setattr(runs, "RunningJob", start)
    job = clonos.Job("copy")
    job.source(clonos.sources.from_batches([], "n long")).sink(clonos.sinks.collect())
    with pytest.raises(SparkStopped if stops else AttributeError):
        runs.start_job(job.compile(), spark)
