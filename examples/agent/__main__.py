"""Agents answer customers while their worker is killed; then the world outside is asked.

    python -m examples.agent

runs 40 conversations with a model that charges for every answer. The worker that runs them is
killed with ``kill -9`` three times: while the model, the desk, and the bank are being asked. At the
end, the journal of the world outside is held against what the job has delivered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

import clonos
from clonos.spark.session import get_or_create
from examples.agent import agent
from examples.agent.verdict import judge
from examples.demo.process import ServerProcess
from examples.judging import Kill, Line, table

TASK: Final = "agent[0]"
KILLS: Final = (("/model", 1.0), ("/desk", 0.1), ("/refund", 0.1))
"""When the worker is killed: after so many more requests to whom, per conversation."""


class Options(NamedTuple):
    """What is run."""

    talks: int = 40
    latency_ms: float = 100.0
    patience_ms: int = 2_000


def run(spark: Any, options: Options) -> tuple[list[dict[str, Any]], list[Line]]:
    """What one run has delivered, and its verdict."""
    with tempfile.TemporaryDirectory(prefix="clonos-agent-") as folder:
        journal = Path(folder, "journal")
        words = ["--journal", str(journal), "--latency-ms", str(options.latency_ms)]
        words += ["--patience-ms", str(options.patience_ms)]
        with ServerProcess("examples.agent.server", words) as server:
            desk_port = get(server.url + "/desk")["port"]
            job = agent.build(server.url, desk_port, options.talks, options.patience_ms)
            running = job.start(spark)
            try:
                kills = kill_workers(running, journal, options)
                wait_until(running, lambda: running.delivered["done"] >= options.talks)
                get(server.url + "/close")  # the desk is the last input: the job ends
                result = running.wait()
            finally:
                if running.is_running:
                    running.stop()
        rows = result.table().to_pylist()
        return rows, judge(journal, kills, options.talks, rows, result.bill["agent"])


def kill_workers(running: clonos.RunningJob, journal: Path, options: Options) -> list[Kill]:
    """``kill -9``, each time that :data:`KILLS` says, unless all conversations are over before."""
    kills: list[Kill] = []

    def is_over() -> bool:
        return running.delivered["done"] >= options.talks

    def is_due(path: str, goal: int) -> bool:
        return is_over() or asked(journal, path) >= goal

    def await_worker(others: Sequence[int] = ()) -> list[int]:
        wait_until(running, lambda: is_over() or set(workers(running)).difference(others))
        return workers(running)

    for path, share in KILLS:
        goal = asked(journal, path) + max(1, round(share * options.talks))
        wait_until(running, partial(is_due, path, goal))
        pids = await_worker()
        if is_over():
            break
        os.kill(pids[0], signal.SIGKILL)
        kills.append(Kill("worker", frozenset({pids[0]}), time.time()))
        over = running.delivered["done"]
        print(
            f"kill -9 {pids[0]}: {path} is being asked, {over} conversations are over", flush=True
        )
        await_worker(pids)
    return kills


def asked(journal: Path, path: str) -> int:
    """How many requests have come there."""
    lines = (json.loads(line) for line in journal.read_bytes().splitlines())
    return sum(line["kind"] == "asked" and line["path"] == path for line in lines)


def workers(running: clonos.RunningJob) -> list[int]:
    """The processes that run agents; none while they recover."""
    if any(task.phase != "live" for task in running.tasks() if task.name == TASK):
        return []
    return [slot.pid for slot in running.slots() if TASK in slot.runs]


def wait_until(running: clonos.RunningJob, condition: Callable[[], Any]) -> None:
    """... it holds; if the job ends before, its error says why."""
    while running.is_running and not condition():
        time.sleep(0.005)
    if not running.is_running:
        running.wait()
        raise SystemExit("the job has ended too soon")


def get(url: str) -> dict[str, Any]:
    """What the world outside says of itself."""
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - ours
        answer: dict[str, Any] = json.load(response)
        return answer


def print_one(rows: Sequence[dict[str, Any]]) -> None:
    """A long conversation, with a human in it if there is one."""
    talks = [json.loads(row["talk"]) for row in rows]
    print("\nOne of the conversations:\n")
    for who, *said in max((list(map(words, talk)) for talk in talks), key=interest):
        print(f"{who:>10}: {', '.join(said)}")
    print()


def words(message: dict[str, Any]) -> tuple[str, ...]:
    """Who has said it, and what."""
    who, *said = message.items()
    return who[1], *(value if name == "text" else f"{name} {value}" for name, value in said)


def interest(talk: Sequence[tuple[str, ...]]) -> tuple[bool, int]:
    """Of a conversation."""
    return any(message[0] == "human" for message in talk), len(talk)


def main() -> int:
    """0 if the verdict has no fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Options()
    parser.add_argument("--talks", type=int, default=default.talks)
    parser.add_argument("--latency-ms", type=float, default=default.latency_ms, help="of all calls")
    parser.add_argument("--patience-ms", type=int, default=default.patience_ms, help="with humans")
    options = Options(**vars(parser.parse_args()))
    spark = get_or_create("local[4]", "agents")
    spark.sparkContext.setLogLevel("OFF")  # Spark prints a page about every worker that dies
    print(
        f"{options.talks} customers want their money back. The worker that runs the agents is "
        "killed while the model, the desk and the bank are being asked.",
        flush=True,
    )
    rows, lines = run(spark, options)
    spark.stop()
    ok = all(line.ok for line in lines)
    print_one(rows)
    Console().print(table(lines))
    print(
        "every word as it was said, no effect twice, nothing on the bill twice" if ok else "FAULTS"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
