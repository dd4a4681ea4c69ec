"""``clonos-bench soak``: an hour of faults, say, and whether the output is what it should be.

The job's source is not slowed down by faults: a row that is due waits. Measured:

standstill
    The longest time without a delivered bill between the first and the last row's being due (bills
    are made every 0.2 s per merchant), and what was struck before it; apart from those behind a
    kill of the driver, which are measured from the kill to the first bill delivered by the next.
memory
    What the driver keeps resident, and the largest of all processes that run or copy tasks: the
    most in each quarter of the time.
verdict
    Faults in the output, by Spark SQL (:mod:`clonos_bench.soak.verdict`).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from clonos_bench import plots, run
from clonos_bench.report import Aim, Report
from clonos_bench.soak import service
from clonos_bench.soak.faults import KINDS

STANDSTILL: Final = Aim(5.0)
"""In seconds."""
_WORST: Final = 5
"""So many standstills are named."""
_WEIGHED: Final = {"driver": "driver", "slot": "largest slot"}
"""Whose memory is in the diary, and what it is called."""
_LOOK_S: Final = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench soak``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="how long rows are due")
    add("--seed", type=int, default=1, help="of the faults and of the service")
    add("--rate", type=float, default=500.0, help="rows per second")
    add("--mean-s", type=float, default=5.0, help="mean time between faults")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what happens")
    add("--driver-kills", type=int, default=0, help="how often the driver is killed, too")
    add("--master", default="local-cluster[3,10,1024]")
    add("--parallelism", type=int, default=2)
    add("--standbys", type=int, default=1)


def measure(arguments: argparse.Namespace) -> Report:
    """Soak, and judge."""
    folder = run.folder(arguments, "soak")
    shutil.rmtree(folder)
    folder.mkdir()
    kills = _supervise(arguments, folder)
    diary = [json.loads(line) for line in (folder / "diary.jsonl").read_text().splitlines()]
    title = f"soak: {arguments.minutes:g} minutes, a fault every {arguments.mean_s:g} s"
    report = Report("soak", title, ("", "n", "worst (s)", "target"))
    add_findings(report, diary, kills, arguments.minutes)
    plot(folder / "soak.png", diary, kills, title)
    return report


def _supervise(arguments: argparse.Namespace, folder: Path) -> list[float]:
    """Start the driver until it ends by itself; returns when it was killed."""
    settings = {k: v for k, v in vars(arguments).items() if k not in {"out", "markdown"}}
    draw = random.Random(arguments.seed)
    moments = sorted(draw.uniform(0.1, 0.9) for _ in range(arguments.driver_kills))
    due_s = [60 * arguments.minutes * moment for moment in moments]
    kills: list[float] = []
    with service.running(folder / "service.jsonl", arguments.seed) as url:
        is_killed = True
        while is_killed:
            is_killed = False
            command = [sys.executable, "-m", "clonos_bench.soak.driver", json.dumps(settings)]
            with subprocess.Popen([*command, str(folder), url]) as driver:
                try:
                    while driver.poll() is None:
                        time.sleep(_LOOK_S)
                        if due_s and _ran_s(folder) >= due_s[0]:
                            del due_s[0]
                            driver.kill()
                            kills.append(time.time())
                            is_killed = True
                finally:
                    driver.kill()
    return kills


def _ran_s(folder: Path) -> float:
    begin = folder / "begin"
    try:
        return time.time() - float(begin.read_text())
    except (OSError, ValueError):  # not there yet, or just being written
        return 0.0


def _delivered(diary: list[dict[str, Any]]) -> list[tuple[float, int]]:
    """All samples: (moment, bills delivered so far). What a new driver reads back is not new.

    Examples
    --------
    >>> counts = ((1, 7), (2, 0), (3, 5), (4, 6))  # another driver at 2, which has read back 5 at 3
    >>> _delivered([{"what": "sample", "at_s": t, "bills": n} for t, n in counts])
    [(1.0, 7), (2.0, 7), (3.0, 7), (4.0, 8)]
    """
    found, total, last, reads_back = [], 0, 0, False
    for line in diary:
        if line["what"] == "sample":
            now = int(line["bills"])
            reads_back = reads_back or now < last
            if not reads_back:
                total += now - last
            elif now:  # it has read its journal
                reads_back = False
            last = now
            found.append((float(line["at_s"]), total))
    return found


def standstills(
    diary: list[dict[str, Any]], kills: list[float], minutes: float
) -> list[tuple[float, float, bool]]:
    """Times without a delivered bill: (seconds, when it began, whether the driver was killed).

    Examples
    --------
    >>> lines = [{"what": "begin", "at_s": 0.0}]
    >>> lines += [{"what": "sample", "at_s": t, "bills": n} for t, n in ((1, 1), (2, 1), (5, 2))]
    >>> standstills(lines, [], 1.0)
    [(4.0, 1.0, False), (1.0, 0.0, False)]
    """
    begin_s = next(line["at_s"] for line in diary if line["what"] == "begin")
    ends_s = begin_s + 60 * minutes
    moments, before = [float(begin_s)], 0
    for at_s, bills in _delivered(diary):
        if bills > before and begin_s <= at_s <= ends_s:
            moments.append(at_s)
        before = bills
    found = [
        (until - since, since, any(since <= kill <= until for kill in kills))
        for since, until in pairwise(moments)
    ]
    return sorted(found, reverse=True)


def add_findings(
    report: Report, diary: list[dict[str, Any]], kills: list[float], minutes: float
) -> None:
    """What the diary says: faults, standstills, memory, the verdict."""
    failed = [line["error"] for line in diary if line["what"] == "failed"]
    verdicts = [line for line in diary if line["what"] == "verdict"]
    struck = Counter(line["kind"] for line in diary if line["what"] == "fault")
    for kind, count in struck.items():
        report.add(kind, str(count), "", "")
    if any(line["what"] == "begin" for line in diary):
        found = standstills(diary, kills, minutes)
        for of_driver, name in ((False, "standstill"), (True, "standstill, driver killed")):
            mine = [f for f in found if f[2] is of_driver]
            if mine:
                aim = "" if of_driver else f"{STANDSTILL}: {STANDSTILL.judge(mine[0][0])}"
                report.add(name, str(len(mine)), f"{mine[0][0]:.1f}", aim)
        report.notes += [_story(diary, seconds, since) for seconds, since, _ in found[:_WORST]]
        report.notes += [
            f"memory of the {name}, most in each quarter of the time: "
            + ", ".join(f"{mb:,.0f}" for mb in quarters(diary, whose, minutes))
            + " MB"
            for whose, name in _WEIGHED.items()
        ]
    for verdict in verdicts:
        faults = [f"{n:,} {what}" for what, n in verdict["faults"].items() if n]
        said = "; ".join(faults) or "nothing lost, repeated or changed"
        report.notes.append(
            f"{verdict['rows']:,} rows: {said}; {verdict['asked_again']:,} rows were asked about "
            "again because nobody had heard of the answer"
        )
        report.ok = report.ok and not faults
    report.notes += failed
    report.ok = report.ok and bool(verdicts)
    report.data |= {"driver_kills": kills, "verdicts": verdicts, "failed": failed}


def quarters(diary: list[dict[str, Any]], whose: str, minutes: float) -> list[float]:
    """The most memory in each quarter of the time in which rows were due, in MB.

    Examples
    --------
    >>> lines = [{"what": "begin", "at_s": 0.0}]
    >>> weighed = (1, 2e6), (2, 9e6), (50, 3e6)
    >>> lines += [{"what": "memory", "at_s": t, "slot": n} for t, n in weighed]
    >>> quarters(lines, "slot", 1.0)
    [9.0, 0.0, 0.0, 3.0]
    """
    begin_s = next(line["at_s"] for line in diary if line["what"] == "begin")
    most = [0.0] * 4
    for line in diary:
        quarter = int(4 * (line["at_s"] - begin_s) / (60 * minutes))
        if line["what"] == "memory" and 0 <= quarter < len(most):
            most[quarter] = max(most[quarter], line[whose] / 1e6)
    return most


def _story(diary: list[dict[str, Any]], seconds: float, since: float) -> str:
    """What was struck in the ten seconds before a standstill, and during it."""
    before = [
        f"{line['kind']} ({line['target']}) {line['at_s'] - since:+.1f} s"
        for line in diary
        if line["what"] == "fault" and since - 10.0 <= line["at_s"] <= since + seconds
    ]
    return f"{seconds:.1f} s without a bill: " + ("; ".join(before) or "nothing was struck")


def plot(path: Path, diary: list[dict[str, Any]], kills: list[float], title: str) -> None:
    """Draw what the diary says, if the job has begun."""
    begin_s = next((line["at_s"] for line in diary if line["what"] == "begin"), None)
    if begin_s is None:
        return
    samples = [line for line in diary if line["what"] == "sample" and line["at_s"] >= begin_s]
    delivered = [(at_s - begin_s, n) for at_s, n in _delivered(diary) if at_s >= begin_s]
    marks: dict[str, list[float]] = {}
    for line in diary:
        if line["what"] == "fault":
            marks.setdefault(line["kind"], []).append(line["at_s"] - begin_s)
    if kills:
        marks["driver"] = [kill - begin_s for kill in kills]
    live = [sample["live"] / max(1, sample["tasks"]) for sample in samples]
    times, bills = [at_s for at_s, _ in delivered], [n for _, n in delivered]
    weighed = [line for line in diary if line["what"] == "memory" and line["at_s"] >= begin_s]
    memory = {
        name: [(line["at_s"] - begin_s, line[whose] / 1e6) for line in weighed]
        for whose, name in _WEIGHED.items()
    }
    plots.soak(path, (times, bills, live), memory, marks, title)
