"""What a step and a hop cost: CPU of one thread, without Spark, sockets and other threads."""

from __future__ import annotations

import argparse
from typing import Any, Final

from clonos.core import messages as msg
from clonos.transport.events import WIRE
from clonos.transport.frames import HEAD, Bodies, FrameReader
from clonos_bench import bare, run
from clonos_bench.report import Report
from clonos_bench.statistics import percentile

_COLUMNS: Final = ("", "rows a batch", "CPU, us", "Python calls")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench steps``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[500, 8192], help="rows of a batch")
    add("--batches", type=int, default=400, help="of each run")
    add("--runs", type=int, default=5, help="of which the median counts")


def measure(arguments: argparse.Namespace) -> Report:
    """A line per task and size, and one per hop."""
    report = Report("steps", "a step of each task, and a hop between processes", _COLUMNS)
    for rows in arguments.rows:
        calls, _ = _costs(rows, min(arguments.batches, 60), bare.python_calls)
        runs = [_costs(rows, arguments.batches, bare.cpu_s) for _ in range(arguments.runs)]
        for task in calls:
            us = percentile([1e6 * costs[task] for costs, _ in runs], 50)
            report.add(task, f"{rows:,}", f"{us:,.0f}", f"{calls[task]:,.0f}")
            report.data.setdefault("steps", []).append([task, rows, us, calls[task]])
        hop = Hop(runs[-1][1])
        us = 1e6 * percentile([hop.cost(bare.cpu_s, 200) for _ in range(arguments.runs)], 50)
        many = hop.cost(bare.python_calls, 1)
        report.add("a hop: encoded, framed, decoded", f"{rows:,}", f"{us:,.0f}", f"{many:,.0f}")
        report.data.setdefault("hops", []).append([rows, us, many])
    report.notes.append("source, windows by key, sink; each batch has a watermark behind it")
    report.notes.append("a hop: the source's batch and its log entries, without system calls")
    return report


def _costs(rows: int, batches: int, meter: bare.Meter) -> tuple[dict[str, float], msg.Data]:
    """Of a step of each task; and the last batch that the source has sent."""
    ran, steps = bare.run(bare.windows(), batches=batches, rows=rows, meter=meter)
    channel = ran.machines[0].spec.outputs[0]
    return {task: ran.cost[task] / count for task, count in steps.items()}, ran.last[channel]


class Hop:
    """What a message costs between two processes, without what the system does."""

    def __init__(self, data: msg.Data) -> None:
        assert data.item is not None
        assert data.item.batch is not None
        self._data, self._batch = data, data.item.batch
        self._bodies = Bodies(self._batch.payload.schema)
        self._there = Bodies(self._batch.payload.schema)
        self._reader = FrameReader()

    def cost(self, meter: bare.Meter, times: int) -> float:
        """Of one hop, on average."""

        def travel() -> None:
            for _ in range(times):
                self._travel()

        return meter(travel)[1] / times

    def _travel(self) -> Any:
        body = self._bodies.encode(self._batch.payload, self._batch.nbytes)
        encoded = WIRE.encode(self._data)
        pieces = [HEAD.pack(len(encoded), sum(map(len, body))), encoded, *map(bytes, body)]
        frames = None
        reader = _Socket(b"".join(pieces))
        while not frames:
            frames = self._reader.receive(reader)
        ((message, came),) = frames
        return WIRE.decode(message, self._there.decode(came))


class _Socket:
    """What was sent is there."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def recv(self, limit: int) -> bytes:
        came, self._content = self._content[:limit], self._content[limit:]
        return bytes(came)

    def recv_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        return size
