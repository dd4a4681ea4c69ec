"""Kills of task managers while Flink runs the join of Nexmark's query 3 or 8.

The same events at the same pace, from our source in Java, which keeps its place in checkpoints. A
cluster of processes: a job manager, a task manager of one slot per parallel task, and a spare one
for each kill, so that a restart need not wait for a process, and none is started while latency is
measured; the one that runs the join's first task is killed with ``kill -9``. The sink writes every
row at once into a file, so that latency is Flink's best: rows since the last checkpoint come again
after a restart (at least once). A sink that takes part in checkpoints would give every row once,
but none before the checkpoint behind it is complete.

Both joins give a row as soon as its person and auction are there.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.flink import sql
from clonos_bench.flink.cluster import Cluster
from clonos_bench.flink.process import Installation, Peer, options
from clonos_bench.kills import PATIENCE_S
from clonos_bench.nexmark.generator import BASE_MS
from clonos_bench.nexmark.parts.paced import FOR_EVER, Pace, expected
from clonos_bench.timelines import Timeline

FLINK: Final = "flink-"
"""Of the names of systems: Flink; behind it, the ms between its checkpoints."""

_START_S: Final = 10.0
"""Events begin so long after the job is asked for: it has to be compiled and deployed."""
_WARM_UP_S: Final = 10.0
_MARGIN_S: Final = 2.0
_SETTLED_MS: Final = 1000.0
_BLOCK_EVENTS: Final = 500
_TAIL_BYTES: Final = 4096

_ROW: Final = """
    CAST(p.date_time AS TIMESTAMP(3)), CAST(a.date_time AS TIMESTAMP(3))
    FROM auction a JOIN person p ON a.seller = p.id
"""
JOINS: Final = {
    "3": (
        "id BIGINT, since TIMESTAMP(3), opens TIMESTAMP(3)",
        f"""
        SELECT a.id, {_ROW}
            AND a.date_time BETWEEN p.date_time - INTERVAL '10' MINUTE
                AND p.date_time + INTERVAL '10' MINUTE
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
    ),
    "8": (
        "id BIGINT, reserve BIGINT, since TIMESTAMP(3), opens TIMESTAMP(3)",
        f"""
        SELECT p.id, a.reserve, {_ROW}
            AND EXTRACT(EPOCH FROM a.date_time) / 10 = EXTRACT(EPOCH FROM p.date_time) / 10
            AND a.date_time BETWEEN p.date_time - INTERVAL '10' SECOND
                AND p.date_time + INTERVAL '10' SECOND
        """,
    ),
}


def measure(query: str, system: str, arguments: Any) -> tuple[Timeline, list[str]]:
    """Run, kill, stop; the timeline, and what is missing."""
    flink = Installation.find(arguments.flink_python)
    checkpoint_ms = int(system.removeprefix(FLINK))
    logs = run.folder(arguments, f"nexmark/recovery/q{query}-{system}")
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        folder = Path(scratch)
        rows = folder / "rows"
        rows.mkdir()
        settings = {
            "execution.checkpointing.interval": f"{checkpoint_ms} ms",
            "parallelism.default": arguments.parallelism,
        }
        workers = arguments.parallelism + arguments.flink_kills
        with Cluster(flink, folder, logs, workers, settings) as cluster:
            command = flink.java("nexmark.Driver", *options(cluster.settings), options=["-Xmx512m"])
            with Peer(command, logs / "client.log") as client:
                pace = Pace(time.time() + _START_S, arguments.rate)
                client.start(_job(query, pace, rows))
                cluster.until(cluster.is_running, PATIENCE_S, "the job runs")
                _settle(cluster, rows, pace)
                time.sleep(arguments.flink_pause)
                kills = [
                    _kill(cluster, rows, pace, arguments) for _ in range(arguments.flink_kills)
                ]
                until_s = time.time() - _MARGIN_S
        found, latency = read(rows, pace, query)
        due, possible = expected(query, pace, until_s), expected(query, pace, time.time())
    missing, again = (due - found).total(), (found - possible).total()
    faults = [f"{missing} rows missing"] if missing else []
    remarks = [f"at least once: {again} rows came again"] if again else []
    name = f"Flink, checkpoints every {checkpoint_ms / 1000:g} s, task manager"
    shown = {"parallelism": arguments.parallelism, "workers": workers, "remarks": remarks}
    return Timeline(name, query, arguments.rate, latency, kills, shown), faults


def _job(query: str, pace: Pace, rows: Path) -> str:
    columns, joined = JOINS[query]
    tables = sql.tables(
        columns,
        FOR_EVER,
        folder=str(rows),
        **{
            "delay-us": pace.generator.delay_us,
            "began-ms": round(pace.began_s * 1000),
            "block-events": _BLOCK_EVENTS,
        },
    )
    return " ".join(f"{tables}; INSERT INTO output {joined}".split())


def _settle(cluster: Cluster, rows: Path, pace: Pace) -> None:
    """What had waited while tasks started is delivered, and the compiler has had some time."""

    def is_settled() -> bool:
        if time.time() < pace.began_s + _WARM_UP_S:
            return False
        return _newest_ms(rows, pace) < _SETTLED_MS

    cluster.until(is_settled, PATIENCE_S, "rows are less than a second late")


def _kill(cluster: Cluster, rows: Path, pace: Pace, arguments: Any) -> float:
    """Kill, and wait until rows are in time again, and for `flink_pause` of normal work."""
    victim = cluster.worker_of("Join", 0)
    at_s = time.time()
    cluster.kill(victim)
    before = _size(rows)
    cluster.until(lambda: _size(rows) > before, PATIENCE_S, "rows come again after a kill")
    cluster.until(cluster.is_running, PATIENCE_S, "every task runs again")
    cluster.until(
        lambda: _newest_ms(rows, pace) < _SETTLED_MS, PATIENCE_S, "rows are in time after a kill"
    )
    time.sleep(arguments.flink_pause)
    return at_s


def _size(rows: Path) -> int:
    """Of what the watched task has delivered."""
    return (rows / "0.tsv").stat().st_size


def _newest_ms(rows: Path, pace: Pace) -> float:
    """How late the newest row of the watched task is; of its file only the end is read."""
    path = rows / "0.tsv"
    if not path.exists():
        return math.inf
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    # The first may have lost its beginning, and the last its end.
    whole = lines[1:-1]
    return _late_ms(whole[-1].decode("ascii").split("\t"), pace) if whole else math.inf


def _late_ms(cells: list[str], pace: Pace) -> float:
    """Arrival less the creation of the event that completed a row."""
    event_ms = max(int(cells[-2]), int(cells[-1])) - BASE_MS
    return float(int(cells[1]) - pace.began_s * 1000 - event_ms)


def read(
    rows: Path, pace: Pace, query: str
) -> tuple[Counter[tuple[int, ...]], list[tuple[float, float]]]:
    """What came, and of the watched task when (s) and how late (ms)."""
    found: Counter[tuple[int, ...]] = Counter()
    latency = []
    for path in sorted(rows.glob("*.tsv")):
        for cells in _cells(path):
            found[_identity(cells, query)] += 1
            if path.stem == "0":
                latency.append((int(cells[1]) / 1000, _late_ms(cells, pace)))
    if not latency:
        raise ClonosError("Flink's join has given nothing", remedy="use more --rate or time")
    return found, latency


def _identity(cells: list[str], query: str) -> tuple[int, ...]:
    """As :func:`expected` has it, times in us; first come the kind of change and the arrival."""
    if query == "3":
        return (int(cells[2]),)
    return int(cells[2]), int(cells[3]), int(cells[5]) * 1000


def _cells(path: Path) -> Iterator[list[str]]:
    """Of every whole line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield line.rstrip("\n").split("\t")
