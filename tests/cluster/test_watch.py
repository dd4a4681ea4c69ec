"""What listeners hear, and that they cannot harm; no Spark."""

from __future__ import annotations

import io
import json
import runpy
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clonos.cluster import audience
from clonos.cluster.audience import JobAudience, Observer, Post, Warnings
from clonos.cluster.listener import Listener
from clonos.nodes.views import (
    CheckpointProgress,
    Dataset,
    JobProgress,
    JobStarted,
    JobTerminated,
    OperatorProgress,
)
from clonos.operators.chain import ChainProgram
from clonos.testing.in_memory import InMemoryRun
from tests.nodes.test_progress import word_count

WAIT_S = 10.0
STARTED = JobStarted("wordcount", "wordcount-1", 1, ("lines[0]",), 5, "app")
COMPLETE = JobTerminated("wordcount", "wordcount-1", is_complete=True, error=None)


class Hearing(Listener):
    """Keeps all that it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_started(self, started: Any) -> None:
        self.heard.append(("started", started))

    def on_progress(self, progress: Any) -> None:
        self.heard.append(("progress", progress))

    def on_recovery(self, recovery: Any) -> None:
        self.heard.append(("recovery", recovery))

    def on_terminated(self, terminated: Any) -> None:
        self.heard.append(("terminated", terminated))


def progress(number: int) -> JobProgress:
    checkpoint = CheckpointProgress(0, None, None, 0)
    return JobProgress(
        "wordcount", "wordcount-1", number, "1970-01-01", (), (), checkpoint, {}, 0, 0, 0
    )


@pytest.fixture
def warnings() -> Warnings:
    return Warnings()


@pytest.fixture
def watched(warnings):
    feeds: Any = None
    return lambda *listeners: JobAudience(Observer([]), warnings, listeners, feeds)


def test_the_newest_warnings_are_kept(warnings, monkeypatch):
    monkeypatch.setattr(audience, "WARNINGS_MAX", 3)
    for number in range(5):
        warnings(f"warning {number}")
    assert warnings.said == ("warning 2", "warning 3", "warning 4")


def test_no_warning_has_a_key(warnings, caplog):
    warnings("s3://KEY:SEC/RET@bucket/job is away")
    assert warnings.said == ("s3://***@bucket/job is away",)
    assert "RET" not in caplog.text


def test_a_listener_that_raises_is_called_again_and_said_once(watched, warnings):
    class Raising(Hearing):
        def on_progress(self, progress: Any) -> None:
            super().on_progress(progress)
            raise ValueError("no disk")

    raising, other = Raising(), Hearing()
    seen = watched(raising, other)
    for number in range(5):
        seen.told(progress(number))
    seen.told(COMPLETE)
    seen.join(WAIT_S)
    assert len(raising.heard) == len(other.heard) == 6
    (warning,) = warnings.said
    assert "Raising raised ValueError in on_progress: no disk" in warning


def test_a_listener_that_blocks_holds_up_nobody(watched, warnings, monkeypatch):
    monkeypatch.setattr(audience, "EVENTS_MAX", 10)
    go_on = threading.Event()

    class Blocking(Hearing):
        def on_progress(self, progress: Any) -> None:
            go_on.wait(WAIT_S)
            super().on_progress(progress)

    blocking, other = Blocking(), Hearing()
    seen = watched(blocking, other)
    for number in range(50):
        seen.told(progress(number))
        until = time.monotonic() + WAIT_S
        while len(other.heard) <= number and time.monotonic() < until:
            time.sleep(0.001)
    seen.told(COMPLETE)
    for post in seen._posts:
        if post.listener is other:
            post.join(WAIT_S)
    assert other.heard[-1][0] == "terminated"
    assert not blocking.heard
    assert warnings.said == ("the listener Blocking is too slow: it misses events",)
    go_on.set()
    seen.join(WAIT_S)
    assert len(blocking.heard) < 50
    assert blocking.heard[-1][0] == "terminated"  # it is the oldest that it misses


def test_listeners_come_and_go(watched, warnings):
    first, second = Hearing(), Hearing()
    seen = watched(first)
    seen.told(progress(1))
    seen.add(second)
    seen.remove(first)
    seen.told(progress(2))
    seen.told(COMPLETE)
    seen.join(WAIT_S)
    assert [name for name, _ in second.heard] == ["progress", "terminated"]
    assert len(first.heard) <= 1


def test_nobody_listens_costs_no_thread(watched, warnings):
    before = threading.active_count()
    Post(Hearing(), warnings)
    watched(Hearing())
    assert threading.active_count() == before


def test_what_a_chain_counts():
    run = InMemoryRun(word_count().compile())
    run.run()
    counted = {}
    for code in run._compiled.codes:
        program = run._tasks[code.task.id].program
        assert isinstance(program, ChainProgram)
        counted.update(program.traffic)
        again = code.program()
        again.apply(bytes(program.delta()))
        assert again.traffic == program.traffic  # a restored task has counted what it is made of
    assert counted["words: rows_in"] == 2
    assert counted["words: rows_out"] == 6
    assert counted["out: rows_in"] == counted["out: rows_out"] == 4


def test_the_example_tells_openlineage(watched, tmp_path):
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.file import FileConfig, FileTransport

    folder = Path(__file__).parents[2] / "examples" / "watching"
    example = runpy.run_path(str(folder / "open_lineage.py"))
    config = FileConfig(str(tmp_path / "lineage.jsonl"), append=True)
    client = OpenLineageClient(transport=FileTransport(config))
    columns = (("n", "bigint"),)
    started = replace(
        STARTED,
        inputs=(Dataset("numbers", "kafka", "numbers of Kafka", columns),),
        outputs=(Dataset("out", "collect", None, columns),),
    )
    operator = OperatorProgress("out", 7, 7, 0.0, {})
    seen = watched(example["OpenLineage"](client, "examples"))
    seen.told(started)
    seen.told(replace(progress(1), operators=(operator,)))
    seen.told(COMPLETE)
    seen.told(replace(COMPLETE, error="ValueError: 7"))
    seen.told(replace(COMPLETE, is_complete=False))
    seen.join(WAIT_S)
    events = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    assert [e["eventType"] for e in events] == ["START", "COMPLETE", "FAIL", "ABORT"]
    assert len({event["run"]["runId"] for event in events}) == 1
    first, last, failed, _ = events
    assert first["inputs"][0]["name"] == "numbers of Kafka"
    (field,) = first["inputs"][0]["facets"]["schema"]["fields"]
    assert (field["name"], field["type"]) == ("n", "bigint")
    assert last["outputs"][0]["name"] == "collect out"
    assert last["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert failed["run"]["facets"]["errorMessage"]["message"] == "ValueError: 7"


def test_the_example_writes_lines_of_json(watched):
    folder = Path(__file__).parents[2] / "examples" / "watching"
    example = runpy.run_path(str(folder / "json_lines.py"))
    out = io.StringIO()
    seen = watched(example["JsonLines"](out))
    seen.told(STARTED)
    seen.told(progress(1))
    seen.told(COMPLETE)
    seen.join(WAIT_S)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    events = ["started", "progress", "terminated"]
    assert [line["event"] for line in lines] == events
    assert lines[1]["told"]["number"] == 1
    assert lines[2]["told"]["is_complete"]
