"""Another prompt is tried on the past of a job that runs, and adopted; nothing is paid for twice.

    python -m examples.fraud

A fraud job judges a day of payments (compressed to less than a minute) with a model that charges
for every token. At noon a branch runs the job's past with another prompt: what would it have found,
and what does it cost? It is adopted while payments arrive, the job gets twice as many tasks at
three, and workers are killed with ``kill -9``: one while it is being doubled, one in the evening
while it waits for answers. In the end everything is compared with a computation in which nothing
was changed on the way and nothing failed, and with the model's own journal. ``--page`` says where
to put a page about it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

import clonos
from clonos.spark.session import get_or_create
from examples.demo.process import ServerProcess
from examples.fraud import pipeline
from examples.fraud.day import Day, free_port
from examples.fraud.page import Happened, Seen, write
from examples.fraud.payments import day
from examples.fraud.verdict import Journal, Paid, judge, quality, short
from examples.judging import Kill, Line, table

BRANCH, ADOPTED, DOUBLE, DOUBLED, KILL, KILLED = 12.0, 15.0, 16.0, 19.0, 20.0, 22.0
"""Hours: when it begins, and until when it has to be done, or the day waits."""
BUDGET: Final = clonos.Budget(cost=100.0)
SAMPLE_S: Final = 0.05


class Options(NamedTuple):
    """What is run."""

    payments: int = 1_200
    seconds: float = 40.0
    latency_ms: float = 100.0


class Told(NamedTuple):
    """What one run has to tell."""

    lines: list[Line]
    branch: clonos.Branch
    seen: Seen


class Watch:
    """How much was delivered, and when."""

    def __init__(self, running: clonos.RunningJob) -> None:
        self._running, self._is_over = running, threading.Event()
        self.samples: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before = newest = 0
        while not self._is_over.wait(SAMPLE_S):
            now = self._running.delivered.get("scored", 0)
            if now < newest:
                before += newest
            newest = now
            self.samples.append((time.time(), before + now))

    def close(self) -> None:
        """The job is over."""
        self._is_over.set()
        self._thread.join()


def run(spark: Any, folder: Path, options: Options, say: Callable[[str], Any]) -> Told:
    """One run, and its verdict."""
    journal, port = folder / "journal", free_port()
    payments = day(options.payments)
    words = ["--journal", str(journal), "--latency-ms", str(options.latency_ms)]
    with ServerProcess("examples.fraud.model", words) as server:
        world = pipeline.World(server.url)
        hooks = clonos.sources.webhook(port, schema=pipeline.ROWS)
        job = pipeline.build(hooks, world, str(folder / "checkpoint"))
        running = job.start(spark)
        watch = Watch(running)
        sending = Day(payments, port, options.seconds, (ADOPTED, DOUBLED, KILL, KILLED))
        try:
            wait_until(running, lambda: is_quiet(running) and keeps_past(running))
            sending.start()
            sending.wait(BRANCH)
            wait_until(running, lambda: scored(running) >= sending.count(BRANCH))
            branch, kills, marks = conduct(job, running, world, sending, say)
            sending.wait()
            wait_until(running, lambda: scored(running) >= len(payments))
            running.stop(settle="60 seconds")
            result = running.wait()
        finally:
            sending.close()
            if running.is_running:
                running.stop()
            watch.close()
    rows = sorted(result.table("scored").to_pylist(), key=lambda row: row["id"])
    bill, seen = result.bill, Journal(journal)
    paid = Paid(bill["judge"].calls, bill["judge"].cost, bill["block"].calls,
                branch.calls, branch.cost)  # fmt: skip
    lines = judge(seen, payments, rows, kills, os.getpid(), paid)
    told = Seen(payments, rows, seen, sending.sent_at, watch.samples, marks, os.getpid())
    return Told(lines, branch, told)


def conduct(
    job: clonos.Job, running: clonos.RunningJob, world: pipeline.World, sending: Day,
    say: Callable[[str], Any],
) -> tuple[clonos.Branch, list[Kill], list[Happened]]:  # fmt: skip
    """All that is done to the job while payments arrive."""
    kills: list[Kill] = []
    marks: list[Happened] = []

    def done(what: str, began: float) -> None:
        marks.append(Happened(what, began, time.time()))

    def kill(what: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        kills.append(Kill(what, frozenset({pid}), time.time()))
        marks.append(Happened("kill", time.time(), time.time()))
        say(f"kill -9 {pid}: {what}")

    began = time.time()
    branch = what_if(job, world)
    done("branch", began)
    for line in story(branch, sending.payments):
        say(line)
    began = time.time()
    running.adopt(branch)
    done("adopt", began)
    say("adopted: payments from now on are asked about with the other prompt")
    sending.allow(ADOPTED)
    sending.wait(DOUBLE)
    began = time.time()
    doubling = threading.Thread(target=running.rescale, args=(4,))
    victim = worker(running)  # while one job follows the other, there is none
    doubling.start()
    kill("a worker, while the job gets twice as many tasks", victim)
    doubling.join()
    done("double", began)
    tasks = sum(task.name.startswith("profile[") for task in running.tasks())
    say(f"the job has {tasks} tasks that judge payments")
    sending.allow(DOUBLED)
    sending.wait(KILL)
    wait_until(running, lambda: is_quiet(running))
    world.post("/hold", {"holds": True})  # however slow the job is, somebody will wait
    sending.allow(KILL)
    wait_until(running, lambda: waiting(world))
    kill("a worker that waits for answers", waiting(world)[0])
    world.post("/hold", {"holds": False})
    wait_until(running, lambda: is_quiet(running))
    sending.allow(KILLED)
    return branch, kills, marks


def what_if(job: clonos.Job, world: pipeline.World) -> clonos.Branch:
    """The payments so far, with the other prompt. The model is asked what the log does not know,
    the bank is not."""
    branch: clonos.Branch = job.branch(
        at="oldest",
        replace={"prompt": pipeline.careful},
        calls=BUDGET,
        ask=[world.ask],
        stand_in=lambda *_: None,
        cost=pipeline.price,
    )
    return branch


def story(branch: clonos.Branch, payments: Any) -> list[str]:
    """What the other prompt would have made of the morning."""
    difference = branch.compare("scored", keys=["id"])
    then, now = (quality(rows.to_pylist(), payments)
                 for rows in (branch.job_rows("scored"), branch.rows("scored")))  # fmt: skip
    (line,) = (one for one in branch.bill.to_pylist() if one["operator"] == "judge")
    answers = f"{line['matched']} answers from the log, {branch.calls} new questions"
    return [
        f"branch: {difference.rows_a} payments so far, {answers} for {branch.cost:.1f} cents",
        f"  as it was:        {then[1]} of {then[0]} thefts seen, {then[2]} false alarms",
        f"  other prompt:     {now[1]} of {now[0]} thefts seen, {now[2]} false alarms",
    ]


def worker(running: clonos.RunningJob) -> int:
    """A process that runs a task which judges payments; one job follows another for a moment."""

    def found() -> list[int]:
        return [slot.pid for slot in running.slots() if "profile[1]" in slot.runs]

    wait_until(running, found)
    (pid,) = found()
    return pid


def is_quiet(running: clonos.RunningJob) -> bool:
    """All tasks are live and have a standby."""
    kept = {name for slot in running.slots() for name in slot.keeps}
    return all(task.phase == "live" and task.name in kept for task in running.tasks())


def scored(running: clonos.RunningJob) -> int:
    """Payments that have come to the sink so far, whichever plan and driver brought them there."""
    progress = running.last_progress
    operators = () if progress is None else progress.operators
    return sum(one.rows_in for one in operators if one.name == "scored")


def keeps_past(running: clonos.RunningJob) -> bool:
    """There is a point to which a branch can go back."""
    progress = running.last_progress
    return progress is not None and progress.history.points > 0


def waiting(world: pipeline.World) -> list[int]:
    """The workers that wait for answers."""
    with urllib.request.urlopen(world.url, timeout=10) as response:  # noqa: S310 - ours
        found: list[int] = json.load(response)["wait"]
        return found


def wait_until(running: clonos.RunningJob, condition: Callable[[], Any]) -> None:
    """... it holds; if the job ends before, its error says why."""
    while running.is_running and not condition():
        time.sleep(0.01)
    if not running.is_running:
        running.wait()
        raise SystemExit("the job has ended too soon")


def main() -> int:
    """0 if the verdict has no fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Options()
    parser.add_argument("--payments", type=int, default=default.payments)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="that a day takes")
    parser.add_argument("--latency-ms", type=float, default=default.latency_ms, help="of all calls")
    parser.add_argument("--page", type=Path, default=Path("fraud.html"), help="where to put a page")
    given = vars(parser.parse_args())
    page = given.pop("page")
    spark = get_or_create("local[16]", "fraud", config={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("OFF")  # Spark prints a page about every worker that dies
    with tempfile.TemporaryDirectory(prefix="clonos-fraud-") as folder:
        told = run(spark, Path(folder), Options(**given), lambda line: print(line, flush=True))
    spark.stop()
    Console().print(table(told.lines, short))
    write(page, told.seen, told.branch, told.lines)
    print(f"a page about it: {page}")
    return 0 if all(line.ok for line in told.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
