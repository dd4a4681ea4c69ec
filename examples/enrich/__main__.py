"""Orders go from Redis through a paid service into PostgreSQL while its processes are killed.

    python -m examples.enrich

starts a Redis server, a PostgreSQL server and a service that charges for every answer, runs
``pipeline.py`` between them, and kills a worker, an executor and the driver (which is started
again), each while calls are open. At the end the table and the bill are held against the orders and
the service's own journal. It needs ``redis-server`` and ``postgresql`` on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from redis import Redis
from rich.console import Console

from examples.demo.process import ServerProcess, environment
from examples.enrich import pipeline, stores
from examples.enrich.verdict import Row, judge
from examples.judging import Kill, Line, table

STARTS_MAX = 4
WORDS = ["chair", "lamp", "a table of oak", "two mirrors", "carpet", "an old radio", "shelf"]


class Options(NamedTuple):
    """What is run."""

    rows: int = 1_000
    latency_ms: float = 50.0
    kill: Sequence[str] = ("worker", "executor", "driver", "worker")
    master: str = "local-cluster[2,4,1024]"


class Driver:
    """The pipeline's process, and what it says of its tasks."""

    def __init__(self, log: Path, arguments: Sequence[str]) -> None:
        self.command = [sys.executable, "-m", pipeline.__name__, *arguments]
        self.log = log  # Spark has much to say about processes that die
        self.starts_left = STARTS_MAX
        self.said: dict[str, Any] = {}
        self.dead: set[int] = set()
        self.start()

    def start(self) -> None:
        self.said = {"slots": [], "quiet": False}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        self.listener = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
        self.listener.start()

    def _listen(self, process: Any) -> None:
        with process.stdout:
            for line in process.stdout:
                if line.startswith("{") and process is self.process:
                    self.said = json.loads(line)

    @property
    def is_quiet(self) -> bool:
        """All tasks are live and have a standby, and it has seen who is dead."""
        pids = {pid for _, pid, _ in self.said["slots"]}
        return bool(self.said["quiet"]) and not pids & self.dead

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """... it holds; one that fails is started again, as supervisors do."""
        while not condition():
            if self.process.poll():
                self.starts_left -= 1
                if not self.starts_left:
                    raise SystemExit(f"the pipeline has failed {STARTS_MAX} times: see {self.log}")
                self.start()
            time.sleep(0.05)

    def kill(self, what: str) -> Kill:
        """``kill -9``; a dead driver is started again."""
        by_name = {name: (pid, executor) for name, pid, executor in self.said["slots"]}
        worker, executor = by_name["ask[0]"]
        victim, dead = {
            "worker": (worker, {worker}),
            "executor": (executor, {pid for pid, parent in by_name.values() if parent == executor}),
            "driver": (self.process.pid, {pid for pid, _ in by_name.values()}),
        }[what]
        os.kill(victim, signal.SIGKILL)
        kill = Kill(what, frozenset(dead), time.time())
        self.dead |= dead
        if what == "driver":
            self.process.wait()
            self.start()
        return kill

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.listener.join()

    def end(self) -> dict[str, Any]:
        """The bill, when it has ended by itself."""
        self.wait_for(lambda: self.process.poll() == 0)
        self.listener.join()
        return self.said


def run(folder: Path, options: Options) -> list[Line]:
    """One run, and its verdict."""
    journal = folder / "journal"
    words = ["--journal", str(journal), "--latency-ms", str(options.latency_ms)]
    with (
        stores.redis(folder) as redis_url,
        stores.postgres(folder / "postgres") as dsn,
        ServerProcess("examples.enrich.service", words) as service,
        Redis.from_url(redis_url) as client,
    ):
        places = [str(folder), redis_url, service.url, dsn, options.master]
        driver = Driver(folder / "log", places)
        try:
            orders, kills = kill_meanwhile(driver, client, service.url, dsn, options)
            (folder / "closed").touch()
            bill = driver.end()
        finally:
            driver.close()
        return judge(journal, kills, orders, enriched(dsn), bill)


def kill_meanwhile(
    driver: Driver, client: Any, url: str, dsn: str, options: Options
) -> tuple[dict[int, str], list[Kill]]:
    """All orders, and what was killed while they went through: each time with calls open."""
    orders: dict[int, str] = {}
    kills: list[Kill] = []
    chosen = random.Random(7)
    share = options.rows // (len(options.kill) + 1)
    driver.wait_for(lambda: driver.is_quiet)
    for what in options.kill:
        came = ask(url, "/")["came"]
        ask(url, f"/hold?at={came + max(1, share // 2)}")
        orders |= add(client, chosen, len(orders), share)
        driver.wait_for(lambda: ask(url, "/")["waiting"] > 0)
        kills.append(driver.kill(what))
        waiting = ask(url, "/release")["waiting"]
        print(f"kill -9: the {what}, while {waiting} calls wait for an answer", flush=True)
        driver.wait_for(partial(is_through, driver, dsn, len(orders)))
    orders |= add(client, chosen, len(orders), options.rows - len(orders))
    driver.wait_for(partial(is_through, driver, dsn, len(orders)))
    return orders, kills


def is_through(driver: Driver, dsn: str, rows: int) -> bool:
    """All these rows are in the table, and the job has recovered."""
    return driver.is_quiet and len(enriched(dsn)) >= rows


def add(client: Any, chosen: random.Random, first: int, count: int) -> dict[int, str]:
    """Some more orders, in the stream."""
    added = {n: " and ".join(chosen.choices(WORDS, k=chosen.randint(1, 4)))
             for n in range(first, first + count)}  # fmt: skip
    for n, text in added.items():
        client.xadd(pipeline.STREAM, {"id": n, "text": text})
    return added


def enriched(dsn: str) -> list[Row]:
    """What is in the table."""
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regclass('enriched')").fetchone() == (None,):
            return []
        return connection.execute("select id, text, receipt, cents from enriched").fetchall()


def ask(url: str, what: str) -> dict[str, int]:
    """How many requests have come, and wait."""
    with urllib.request.urlopen(url + what, timeout=60) as response:  # noqa: S310 - ours
        answer: dict[str, int] = json.load(response)
        return answer


def main() -> int:
    """0 if every order is in the table once, and the bill has what it should have."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Options()
    parser.add_argument("--rows", type=int, default=default.rows)
    parser.add_argument("--latency-ms", type=float, default=default.latency_ms, help="of answers")
    parser.add_argument("--kill", nargs="*", default=default.kill,
                        choices=["worker", "executor", "driver"])  # fmt: skip
    parser.add_argument("--master", default=default.master, help="of the pipeline")
    options = Options(**vars(parser.parse_args()))
    folder = Path(tempfile.mkdtemp(prefix="clonos-enrich-"))
    folder.chmod(0o755)  # PostgreSQL may be another user
    lines = run(folder, options)
    Console().print(table(lines))
    ok = all(line.ok for line in lines)
    print("nothing lost, nothing twice, nothing paid twice but what was open at a kill"
          if ok else f"FAULTS: see {folder}")  # fmt: skip
    if ok:
        shutil.rmtree(folder)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
