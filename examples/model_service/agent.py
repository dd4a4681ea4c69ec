"""Agents that go round with a slow, paid model until it is content, while their worker is killed.

    python examples/model_service/agent.py

answers 120 tickets. Each takes several turns, because the model's scores are random, and it is
asked again until it scores "good". Fifty calls are open at a time. The process of the agents is
killed three times; then the model's own journal is held against what was delivered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clonos
from clonos.spark.session import get_or_create

TURNS_MAX = 8
KILLS = 3


def ask_model(url: str, text: str) -> dict[str, Any]:
    """One call of the model, in a thread: slow, not free, and never twice the same."""
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(url + "/score", body, timeout=10) as response:  # noqa: S310 - ours
        answer: dict[str, Any] = json.load(response)
        return answer


class Agent(clonos.Process):
    """One conversation per ticket; what was said so far is state."""

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, ctx: clonos.ProcessContext) -> None:
        self.model = ctx.service("model", ask_model, timeout="10 seconds", attempts=3)
        self.talk = ctx.state("talk")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> None:
        self.talk.set([])
        self.ask(row.ticket)

    def ask(self, ticket: int) -> None:
        """The question depends on what was answered so far."""
        scores = [answer["score"] for answer in self.talk.get()]
        self.model.ask(self.url, f"ticket {ticket} after {scores}", then="on_answer")

    def on_answer(self, reply: Any, ctx: clonos.ProcessContext) -> Iterator[Any]:
        talk = [*self.talk.get(), reply.get()]
        self.talk.set(talk)
        if talk[-1]["label"] == "good" or len(talk) == TURNS_MAX:
            yield ctx.key, len(talk), [answer["request"] for answer in talk]
        else:
            self.ask(ctx.key)


def build(url: str, tickets: int) -> clonos.Job:
    """Tickets -> agents -> what they came to."""
    job = clonos.Job("agents", parallelism=1, checkpoint_interval="500 ms")
    rows = [[(ticket,) for ticket in range(tickets)]]
    source = job.source(clonos.sources.from_batches(rows, "ticket long"), name="tickets")
    agents = source.slot_group("agents").key_by("ticket").process(
        Agent(url), "ticket long, turns int, requests array<long>", name="agent", in_flight=50
    )  # fmt: skip
    agents.sink(clonos.sinks.collect(), name="done")
    return job


def run(spark: Any, url: str, tickets: int) -> list[dict[str, Any]]:
    """The job, whose agents' process is killed whenever another quarter of the tickets is done."""
    running = build(url, tickets).start(spark)
    for kill in range(1, KILLS + 1):
        goal = tickets * kill // (KILLS + 1)
        while running.is_running and running.delivered["done"] < goal:
            time.sleep(0.01)
        for slot in running.slots():
            if "agent[0]" in slot.runs:
                os.kill(slot.pid, signal.SIGKILL)
                print(f"killed {slot.pid} with {running.delivered['done']} tickets done")
    rows: list[dict[str, Any]] = running.wait().table().to_pylist()
    return rows


def check(rows: list[dict[str, Any]], journal: Path, tickets: int) -> str:
    """Every ticket is answered once, with the newest answer to each of its questions."""
    asked: dict[str, list[int]] = {}
    cents, texts = 0.0, {}
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        asked.setdefault(entry["text"], []).append(entry["request"])
        texts[entry["request"]] = entry["text"]
        cents += entry["cents"]
    assert sorted(row["ticket"] for row in rows) == list(range(tickets))
    for row in rows:
        for request in row["requests"]:
            # It was used, so it was logged: had it been asked again, there would be a newer one.
            assert asked[texts[request]][-1] == request, row
    calls, again = len(texts), len(texts) - len(asked)
    return (
        f"{tickets} tickets, {KILLS} kills: {calls} calls, {cents:.1f} cents; {again} of them "
        "were asked again, because the process died before it had their answers"
    )


def main() -> None:
    """One run and its bill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tickets", type=int, default=120)
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the model")
    options = parser.parse_args()
    spark = get_or_create("local[6]", "agents")
    spark.sparkContext.setLogLevel("OFF")  # Spark prints a page about every worker that dies
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        service = [sys.executable, str(Path(__file__).with_name("service.py"))]
        service += ["--journal", str(journal), "--latency-ms", str(options.latency_ms)]
        with subprocess.Popen(service, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            rows = run(spark, process.stdout.readline().strip(), options.tickets)
            process.kill()
        print(check(rows, journal, options.tickets))
    spark.stop()


if __name__ == "__main__":
    main()
