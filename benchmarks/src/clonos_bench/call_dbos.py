"""A durable step per call: the same calls in DBOS 3, on a PostgreSQL of its own.

A workflow has one row, or many rows whose steps are open at the same time. There is no given rate:
whenever fewer calls are open than may be, more begin.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from clonos.errors import ClonosError
from clonos_bench import call_jobs, postgres, run
from clonos_bench.call_flink import repeated, require_each_once
from clonos_bench.processes import CpuMeter, descendants
from clonos_bench.report import Report
from clonos_bench.statistics import percentile

DEFAULT_PYTHON: Final = ".venv-dbos/bin/python"
REMEDY: Final = "python3 -m venv .venv-dbos && .venv-dbos/bin/pip install dbos==3.4.0"
PROGRAM: Final = Path(__file__).with_name("dbos_program.py")
TOGETHER: Final = (1, 50)
"""Numbers of rows in a workflow that are measured."""
LOOK_S: Final = 0.05
WAIT_S: Final = 300.0
OPEN: Final = 200
"""Calls that are open at a time, without kills: enough for 1,000 calls of 200 ms a second."""


def measure(arguments: argparse.Namespace) -> Report:
    """Calls per second, what they cost, and what a kill repeats."""
    columns = ("", "calls/s", "p50, ms beyond", "p99", "CPU, us a call")
    report = Report("dbos", f"DBOS: {OPEN} calls of {arguments.call_ms:g} ms at a time", columns)
    if not Path(arguments.dbos_python).exists():
        report.notes.append(f"without DBOS: no {arguments.dbos_python}; {REMEDY}")
        return report
    for together in TOGETHER:
        rows = _rate(arguments, together) * arguments.seconds
        with _server() as (dsn, server):
            late, per_s, cpu_us = _once(arguments, dsn, server, round(rows), together)
        cells = (f"{percentile(late, 50):,.0f}", f"{percentile(late, 99):,.0f}")
        kind = "a workflow per row" if together == 1 else f"{together} rows a workflow"
        report.add(kind, f"{per_s:,.0f}", *cells, f"{cpu_us:,.0f}")
    report.parts.append(_kills(arguments))
    report.notes.append("CPU: of the process that asks and of its PostgreSQL, which syncs")
    return report


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, int]]:
    """A new server; and its process."""
    with postgres.server() as dsn:
        with postgres.connected(dsn) as sql:
            backend = sql.execute("select pg_backend_pid()").fetchone()[0]
            status = Path(f"/proc/{backend}/stat").read_text("ascii")
        yield dsn, int(status.rpartition(")")[2].split()[1])


def _rate(arguments: argparse.Namespace, together: int) -> float:
    """About how many rows a second there will be, from a short run that is not reported."""
    with _server() as (dsn, server):
        _, per_s, _ = _once(arguments, dsn, server, 10 * OPEN // 2, together)
    return per_s


def _start(
    arguments: argparse.Namespace, dsn: str, folder: str, rows: int, **how: Any
) -> subprocess.Popen[bytes]:
    given = {"dsn": dsn, "folder": folder, "rows": rows, "call_s": arguments.call_ms / 1000, **how}
    command = [str(Path(arguments.dbos_python).absolute()), str(PROGRAM), json.dumps(given)]
    with (run.folder(arguments, "calls/dbos") / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def _wait(process: subprocess.Popen[bytes], cpu: CpuMeter | None = None, server: int = 0) -> None:
    give_up = time.monotonic() + WAIT_S
    while process.poll() is None:
        if time.monotonic() > give_up:
            process.kill()
            raise ClonosError(f"DBOS has not ended after {WAIT_S:g} s", remedy="use fewer rows")
        if cpu is not None:
            cpu.look([process.pid, server, *descendants(server)])
        time.sleep(LOOK_S)
    if process.returncode:
        raise ClonosError("DBOS has failed", remedy="see its log")


def _outs(folder: str) -> Any:
    kind = [("id", "<i8"), ("at", "<f8"), ("is_out", "?")]
    return np.concatenate([np.fromfile(path, kind) for path in Path(folder).glob("*.outs")])


def _once(
    arguments: argparse.Namespace, dsn: str, server: int, rows: int, together: int
) -> tuple[Any, float, float]:
    """How late rows are beyond their call (ms, from when it was asked), calls/s, CPU per call."""
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        cpu = CpuMeter()
        process = _start(arguments, dsn, folder, rows, in_flight=OPEN, together=together)
        _wait(process, cpu, server)
        outs = _outs(folder)
        began_s, outs = float(outs["at"][outs["id"] < 0][0]), outs[outs["id"] >= 0]
        require_each_once(outs["id"], rows)
        asked_s, _ = call_jobs.asked_and_answered(folder, outs["id"])
    late = 1000 * (outs["at"] - asked_s) - arguments.call_ms
    return late, rows / (outs["at"].max() - began_s), 1e6 * cpu.seconds / rows


def _kills(arguments: argparse.Namespace) -> Report:
    """The process that asks is killed while calls are open, and started again at once."""
    title = f"DBOS: kill -9 while {arguments.open} calls are open"
    report = Report("dbos-kills", title, ("", ""))
    together, kills_s, rows = TOGETHER[-1], list[float](), 4 * arguments.open * arguments.kills
    with _server() as (dsn, _), tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        how = {"in_flight": arguments.open, "together": together}
        for _ in range(arguments.kills):
            process = _start(arguments, dsn, folder, rows, **how)
            _until_open(arguments, process, folder)
            os.kill(process.pid, signal.SIGKILL)
            kills_s.append(time.time())
            process.wait()
        _wait(_start(arguments, dsn, folder, rows, **how))
        outs = _outs(folder)
        require_each_once(np.unique(outs["id"][outs["id"] >= 0]), rows)
        events = np.concatenate(list(call_jobs.events(folder).values()))
    found = repeated(np.sort(events, order="at"), kills_s)
    report.add("kills of the process that asks", f"{len(kills_s)}")
    report.add("calls that were open then", f"{found.open:,}")
    report.add("... asked again", f"{found.open_again:,}")
    report.add("answered, and asked again", f"{found.answered_again:,}")
    report.data = vars(found)
    return report


def _until_open(arguments: argparse.Namespace, process: Any, folder: str) -> None:
    """Wait until the process has answered so many calls that others have begun meanwhile."""
    give_up = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < give_up:
        events = call_jobs.events(folder).get(process.pid)
        if events is not None and events["answered"].sum() >= arguments.open:
            return
        time.sleep(LOOK_S)
    raise ClonosError("DBOS asks too little", remedy="see its log")
