"""Where each operation of a job runs, in either execution, as text."""

from __future__ import annotations

from typing import Final

from clonos.core.levels import STORE
from clonos.dataframes.asking import asks
from clonos.dataframes.plan import Plans
from clonos.errors import NotInSpark
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.graph.logical import LogicalGraph, Vertex
from clonos.operators import operations as op

PLANS: Final[dict[type[op.Operation], str]] = {
    op.PassOn: "nothing",
    op.Widen: "nothing",
    op.Map: "mapInArrow, the same operator",
    op.FlatMap: "mapInArrow, the same operator",
    op.Filter: "mapInArrow, the same operator",
    op.MapBatches: "mapInArrow, the same operator",
    op.WithColumn: "mapInArrow, the same operator",
    op.MapAsync: "mapInArrow, the same operator",
    op.WithColumnAsync: "mapInArrow, the same operator",
    op.ForEachAsync: "mapInArrow, the same operator",
    op.Where: "where, natively",
    op.Project: "select, natively",
    op.WithWatermark: "withWatermark, where it is needed",
    op.LookUp: "broadcast join",
    op.AggregateWindows: "groupBy(keys, window).agg",
    op.TopOfWindows: "rank() over keys and window; in a stream a sorted list cut",
    op.RowsOfWindows: "groupBy(keys, window), a list",
    op.Join: "join with the same condition",
    op.Deduplicate: "dropDuplicates",
}
_LOGGED: Final[dict[type[op.Operation], str]] = {
    op.MapAsync: "answers",
    op.WithColumnAsync: "answers",
    op.ForEachAsync: "answers",
    op.TransformRows: "timers",
    op.ProcessRows: "timers, and what it asks",
}


def explain(graph: LogicalGraph, compiled: CompiledJob, plans: Plans | None) -> str:
    """A table with a line per operation; without `plans` (no session) Spark's side is missing."""
    lines = [("operator", "tasks", "slots", "log", "Spark's plan")]
    codes = {name: code for code in reversed(compiled.codes) for name, _ in code.operators}
    known = {vertex.name: vertex for vertex in graph.vertices}
    for name, code in sorted(codes.items(), key=lambda item: item[1].task.id):
        vertex = known.get(name)
        plan = "by Spark itself" if vertex is None else _plan(vertex, plans)
        lines.append((name, *_tasks(name, code, compiled), plan))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    padded = (
        "  ".join([*(part.ljust(n) for part, n in zip(line, widths, strict=False)), line[4]])
        for line in lines
    )
    return "\n".join(padded)


def _tasks(name: str, code: TaskCode, compiled: CompiledJob) -> tuple[str, str, str]:
    count, chain = code.parallelism, code.task.operator
    of = "" if chain == name else f" in {chain}"
    first = code.task.cell or 0
    cells = f"{first}" if count == 1 else f"{first}-{first + count - 1}"
    logged = [
        _LOGGED.get(type(operation), "") for each, operation in code.operators if each == name
    ]
    if name == code.operators[0][0]:
        logged += ["cuts of input"] if code.source is not None else []
        logged += ["order of inputs"] if len(code.task.inputs) > 1 else []
        logged += ["what comes round"] if code.feedback else []
    told = ", ".join(filter(None, logged)) if compiled.plan.causal_log else ""
    if code.task.is_implied:
        told = "none: it follows from the input"
    level = "" if code.task.level == STORE else f"; its state is kept at {code.task.level!r}"
    return f"{count}{of}", cells, f"{told or '-'}{level}"


def _plan(vertex: Vertex, plans: Plans | None) -> str:
    if plans is None:
        return "not known without a Spark session"
    try:
        plans.rows(vertex)
    except NotInSpark as error:
        is_here = error.where == vertex.name
        return f"none: {error.what}" if is_here else f"none: behind {error.where}"
    if vertex.source is not None:
        return "readStream" if plans.streams(vertex) else "DataFrame"
    if vertex.sink is not None:
        return "sink"
    if len(vertex.edges) > 1 and isinstance(vertex.operation, op.PassOn):
        return "unionByName"
    plan = PLANS[type(vertex.operation)]
    return f"{plan}, with the causal log" if asks(vertex.operation, vertex.name) else plan
