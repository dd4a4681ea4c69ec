"""Who takes over a job waits for the servers of its sinks, as for all that was there until now."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.patience import Patience
from clonos.errors import OutputExists, SinkFailed, StoreAway
from clonos.sinks import kafka_session
from clonos.sinks.postgres_session import Target
from clonos.sinks.writers import Claims

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])
_numbers = itertools.count()


def claiming(sink: Any) -> Callable[[], None]:
    claims = Claims({"out": sink}, "process", "me", {"out": 1})
    return lambda: claims.begin({"out": SCHEMA}, is_new=True)


def patient(attempt: Callable[[], None]) -> list[str]:
    """Begin, and take over; return what was said meanwhile."""
    waited, warned = list[float](), list[str]()
    with pytest.raises(SinkFailed):
        Patience("job", waited.append, warned.append, is_needed=False)(attempt)
    assert not waited
    Patience("job", waited.append, warned.append, is_needed=True)(attempt)
    assert waited
    return warned


def test_a_database(postgres, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    right, left = Target.connect, [1, 2, 3]

    def connect(*how: Any) -> Any:
        if left:
            left.pop()
            raise psycopg.OperationalError("connection refused")
        return right(*how)

    monkeypatch.setattr(Target, "connect", connect)
    warned = patient(claiming(clonos.sinks.postgres(postgres, f"over{next(_numbers)}")))
    assert "connection refused" in warned[0]


def test_a_cluster(monkeypatch):
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(kafka_session, "METADATA_S", 0.3)
    sink: Any = clonos.sinks.kafka("127.0.0.1:1", "t", transactions=False)
    begin = claiming(sink)
    with pytest.raises(SinkFailed, match="does not answer"):
        Patience("job", lambda _: pytest.fail("it waits"), pytest.fail, is_needed=False)(begin)
    with pytest.raises(StoreAway, match="does not answer"):
        Patience("job", lambda _: True, lambda _: None, is_needed=True)(begin)


def test_what_never_passes_is_not_waited_for(postgres):
    dsn, name = postgres, f"over{next(_numbers)}"
    claiming(clonos.sinks.postgres(dsn, name))()
    others = Claims({"out": clonos.sinks.postgres(dsn, name)}, "process", "other", {"out": 1})
    with pytest.raises(OutputExists):
        Patience("job", lambda _: pytest.fail("it waits"), pytest.fail, is_needed=True)(
            lambda: others.begin({"out": SCHEMA}, is_new=True)
        )
