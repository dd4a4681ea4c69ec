"""Answers that tasks and jobs share, in real stores, which go away."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from typing import Any

import pytest

import clonos
from clonos.core.canonical import decode
from clonos.errors import WrongType
from clonos.operators.calls.service import policy_of
from clonos.runtime import shared_answers
from clonos.runtime.shared_answers import Known, SharedAnswers
from tests.processes import free_port
from tests.runtime.slot import Slot, policy

_names = itertools.count()


@pytest.fixture(params=["redis_url", "postgres"])
def cache(request):
    """A store, and a name that nobody has used."""
    url = request.getfixturevalue(request.param)
    if request.param == "postgres":
        url = postgresql_url(url)
    return clonos.Cache(url, f"{os.getpid()} {next(_names)}")


def postgresql_url(dsn: str) -> str:
    """The same as a URL."""
    psycopg = pytest.importorskip("psycopg")
    known = psycopg.conninfo.conninfo_to_dict(dsn)
    named = "&".join(f"{name}={value}" for name, value in known.items())
    return f"postgresql:///?{named}"


class Asked:
    """A service whose answers are new each time."""

    def __init__(self) -> None:
        self.questions: list[Any] = []

    async def __call__(self, question: Any) -> Any:
        self.questions.append(question)
        if question == "bad":
            raise ValueError("no")
        return [question, len(self.questions)]


def ask(how: Any, *questions: Any) -> list[Any]:
    """Of a process of its own; it ends when it has its answers."""
    slot = Slot()
    slot.make(how, *((question,) for question in questions))
    found = slot.outcomes(len(questions))
    slot.runner.close()
    return [(decode(o.answer) if o.ok else None, o.attempts) for o in found]


def test_another_process_finds_the_answers_and_asks_only_what_is_new(cache):
    service = Asked()
    how = policy(service, cache_ttl_s=1000.0, cache=cache)
    first = ask(how, "a", "b", "bad", "a")
    assert {answer for answer, _ in [(str(a), n) for a, n in first]} == {
        "['a', 1]", "['b', 2]", "None",
    }  # fmt: skip
    assert ask(how, "b", "a", "c", "bad") == [
        (["b", 2], 0),
        (["a", 1], 0),
        (["c", 4], 1),
        (None, 1),
    ]
    assert service.questions == ["a", "b", "bad", "c", "bad"]


def test_other_names_and_times_that_are_over_share_nothing(cache):
    service = Asked()
    ask(policy(service, cache_ttl_s=1000.0, cache=cache), "a")
    other = clonos.Cache(cache.url, f"{cache.name} 2")
    assert ask(policy(service, cache_ttl_s=0.001, cache=other), "a") == [(["a", 2], 1)]
    while ask(policy(service, cache_ttl_s=0.001, cache=other), "a")[0][1] == 0:
        """Until the time is over."""
    assert len(service.questions) == 3


def test_who_finds_an_answer_has_it_for_the_rest_of_its_time(cache):
    async def found() -> Known | None:
        shared = SharedAnswers(cache)
        shared.keep(b"question", b"answer", 100.0)
        while (known := await shared.find(b"question")) is None:
            """Nobody waits until it is kept."""
        await shared.close()
        return known

    known = asyncio.run(found())
    assert known is not None
    assert known.answer == b"answer"
    assert 50 < known.left_s <= 100


def test_a_store_that_is_away_costs_a_moment_and_no_row(caplog):
    port = free_port()
    pytest.importorskip("redis")
    service = Asked()
    how = policy(
        service, cache_ttl_s=1000.0, cache=clonos.Cache(f"redis://:word@127.0.0.1:{port}", "x")
    )
    assert ask(how, "a", "b", "a") == [(["a", 1], 1), (["b", 2], 1), (["a", 1], 0)]
    told = [record.getMessage() for record in caplog.records if record.name == "clonos"]
    assert len(told) == 1, "it is not tried for each question"
    assert "Services are asked meanwhile" in told[0]
    assert "word" not in told[0]


def test_a_store_that_hangs_is_away(monkeypatch, caplog):
    monkeypatch.setattr(shared_answers, "STORE_S", 0.1)
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as listens:
        url = f"redis://127.0.0.1:{listens.getsockname()[1]}"
        how = policy(Asked(), cache_ttl_s=1000.0, cache=clonos.Cache(url, "x"))
        assert ask(how, "a") == [(["a", 1], 1)]
    assert any("tried again" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "make",
    [
        lambda: clonos.Cache("file:///tmp/x", "a"),
        lambda: clonos.Cache("redis://host", ""),
        lambda: clonos.Cache("redis://host:port", "a"),
        lambda: clonos.Cache("postgresql://[::1/db", "a"),
        lambda: clonos.Cache(None, "a"),  # type: ignore[arg-type]
        lambda: policy_of(print, "ask", in_flight=1, cache=clonos.Cache("redis://host", "a")),
        lambda: policy_of(print, "ask", in_flight=1, cache_ttl="1 s", cache="redis://host"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(make):
    with pytest.raises(WrongType) as caught:
        make()
    assert caught.value.remedy
    assert "secret" not in repr(clonos.Cache("redis://me:secret@host/1?password=secret", "a"))


def test_a_store_whose_task_is_cancelled_by_user_code_costs_no_row(monkeypatch):
    """All that wait for it would wait for ever."""
    began = threading.Event()

    class Hanging:
        def __init__(self, url: str) -> None:
            del url

        async def find(self, questions: Any) -> Any:
            del questions
            began.set()
            await asyncio.sleep(60.0)

        async def close(self) -> None:
            """It has nothing."""

    async def cancel_all() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    monkeypatch.setitem(shared_answers._STORES, "redis", Hanging)
    monkeypatch.setattr(shared_answers, "STORE_S", 0.5)
    slot, service = Slot(), Asked()
    slot.make(policy(service, cache_ttl_s=60.0, cache=clonos.Cache("redis://x", "x")), ("a",))
    assert began.wait(60.0)
    slot.make(policy(cancel_all), (), life=8)
    told = [outcome for _ in range(2) for outcome in slot.heard.get(timeout=60.0).outcomes]
    assert all(outcome.ok for outcome in told)
    slot.runner.close()
