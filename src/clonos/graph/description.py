"""A graph as plain data, stored in a checkpoint, whose state another graph cannot use.

User functions are not included, so that a bug can be fixed between two runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clonos.errors import OtherJob, masked
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.graph.logical import LogicalGraph, Vertex
from clonos.sinks.spec import SinkSpec
from clonos.sources.files_reader import FileList
from clonos.sources.spec import SourceSpec

READS = "reads"

_FILES_SHOWN = 10


def describe(compiled: CompiledJob) -> dict[str, Any]:
    """The graph of a job in tasks: all that must be equal for journal and layers to match."""
    plan = compiled.plan
    tasks = {code.task.name: _task(code) for code in compiled.codes}
    names = {code.task.id: code.task.name for code in compiled.codes}
    return {
        "job": compiled.name,
        "sharing_depth": plan.sharing_depth,
        "causal_log": plan.causal_log,
        "has_markers": plan.has_markers,
        **({"leaves_gaps": True} if plan.leaves_gaps else {}),
        "seed": plan.job_seed,
        "lineage": compiled.options.lineage,
        "tasks": tasks,
        "channels": [
            [names[c.sender], names.get(c.receiver, "house-keeper"), c.port]
            + ["feedback"] * c.is_feedback
            for c in plan.channels
        ],
    }


def _task(code: TaskCode) -> dict[str, Any]:
    task = code.task
    return {
        "parallelism": code.parallelism,
        "inputs": task.inputs,
        "outputs": task.outputs,
        "flags": [
            task.is_source,
            task.is_sink,
            task.is_gated,
            task.writes_itself,
            task.has_effects,
        ],
        **({"implied": True} if task.is_implied else {}),
        "bad_records": code.on_bad_record,
        "operators": [
            [name, type(operation).__name__, *operation.settings]
            for name, operation in code.operators
        ],
        "keeps": {
            name: [str(schema) for schema in operation.keeps] for name, operation in code.operators
        },
        "schemas": {str(c): str(schema) for c, schema in code.schemas.items()},
        "source": None if code.source is None else _source(code.source),
        "sink": _sink(code.sink),
    }


def _sink(sink: SinkSpec | None) -> list[str | None] | None:
    """Kind and place, without keys: these may change, and others may read the description."""
    if sink is None:
        return None
    return [sink.kind, None if sink.path is None else masked(sink.path)]


def _source(source: SourceSpec) -> list[Any]:
    named = [{READS: list(source.reads)}] if source.reads else []
    return [source.kind, *_files(source.factory), *named]


def reads_of(source: Sequence[Any] | None) -> list[str] | None:
    """What a source reads, from its description; None: it does not say."""
    found: dict[str, list[str]] = next((x for x in source or () if isinstance(x, dict)), {})
    return found.get(READS)


def with_reads(before: Any, now: Any) -> Any:
    """A description, with what sources read now where it does not say what they read, as it
    is of a job that an earlier clonos began."""
    tasks = dict(before["tasks"])
    for name, task in tasks.items():
        source, present = task["source"], now["tasks"].get(name, {}).get("source")
        names = reads_of(present)
        if source and present and names and source[0] == present[0] and reads_of(source) is None:
            tasks[name] = {**task, "source": [*source, {READS: names}]}
    return {**before, "tasks": tasks}


def _files(factory: Any) -> list[Any]:
    """The files of a source, because other files have other rows at the same numbers."""
    found = [a for a in getattr(factory, "args", ()) if isinstance(a, FileList)]
    return [[list(files.paths), list(files.sizes)] for files in found]


def describe_plans(graph: LogicalGraph, inputs: Mapping[int, list[str]]) -> dict[str, Any]:
    """The graph of a job that runs as Spark's streaming queries, to which their state belongs.

    Parameters
    ----------
    inputs
        The inputs of streaming DataFrames, by vertex id, because other input has other rows at the
        same offsets.
    """
    return {
        "job": graph.name,
        "bad_records": graph.on_bad_record,
        "operators": {
            vertex.name: _vertex(vertex, inputs.get(vertex.id, [])) for vertex in graph.vertices
        },
    }


def _vertex(vertex: Vertex, inputs: list[str]) -> dict[str, Any]:
    return {
        "operation": [type(vertex.operation).__name__, *vertex.operation.settings],
        "reads": [[edge.vertex.name, list(edge.keys)] for edge in vertex.edges],
        "schema": str(vertex.schema),
        "source": None if vertex.source is None else [vertex.source.kind, inputs],
        "sink": _sink(vertex.sink),
    }


def names_of(description: Mapping[str, Any]) -> list[str]:
    """The operators in a description."""
    tasks = description["tasks"].values()
    return list(dict.fromkeys(name for task in tasks for name, *_ in task["operators"]))


def tables_of(description: Mapping[str, Any]) -> list[list[str]]:
    """The sinks in a description that write a table, each with the table's place."""
    tasks = description["tasks"].values()
    sinks = ((task["operators"][-1][0], task.get("sink")) for task in tasks)
    found = ([name, sink[1]] for name, sink in sinks if sink and sink[0] == "table")
    return [list(one) for one in dict.fromkeys(map(tuple, found))]


def require_same(before: Any, now: Any, where: str, remedy: str = "") -> None:
    """Raise `OtherJob` if a graph is not the one that a checkpoint describes.

    Parameters
    ----------
    before
        The checkpoint's description, as read from JSON.
    where
        The file with the description.
    remedy
        What else the user can do.
    """
    for place, was, became in differences(before, json.loads(json.dumps(now))):
        if place == "has_markers":
            kind = "marked" if before[place] else "uncoordinated"
            raise OtherJob(
                f"the job was started with {kind} checkpoints, and now has others",
                where=where,
                remedy=f"say checkpoints={kind!r}" + remedy,
            )
        _require_same_files(place, before, now, where)
        _require_same_reads(place, before, now, where)
        raise OtherJob(
            f"the checkpoint was written by another graph: {place} was {was}, is {became}",
            where=where,
            remedy="start the job with the graph that wrote it, or in another checkpoint_dir"
            + remedy,
        )


def _require_same_files(place: str, before: Any, now: Any, where: str) -> None:
    """Raise `OtherJob` if the difference at this place is in the files of a source.

    Its remedies are others than those of a changed graph: the user has changed a folder, no code.
    """
    for name in before.get("tasks", ()) if place.startswith("tasks.") else ():
        was, became = (graph["tasks"].get(name, {}).get("source") for graph in (before, now))
        is_here = place.startswith(f"tasks.{name}.source.")
        if not (is_here and was and became and was[0] == became[0] == "files"):
            continue
        old, new = (dict(zip(*source[1], strict=True)) for source in (was, became))
        changes = {
            "new": [path for path in new if path not in old],
            "gone": [path for path in old if path not in new],
            "of another size": [path for path in old if new.get(path, old[path]) != old[path]],
        }
        steps = {
            "new": "move the new ones away until the job is complete",
            "gone": "put those back that are gone",
            "of another size": "put back what the others contained",
        }
        found = [f"{what}: {_listed(paths)}" for what, paths in changes.items() if paths]
        kept = " and ".join(steps[what] for what, paths in changes.items() if paths)
        raise OtherJob(
            f"the files of source {name.rpartition('[')[0] or name} are not those with which the "
            f"job was first started. {'; '.join(found)}",
            where=where,
            remedy=f"{kept}, then start it again; or read the files of now in a new job, with "
            "another checkpoint_dir",
        )


def _require_same_reads(place: str, before: Any, now: Any, where: str) -> None:
    """Raise `OtherJob` if the difference at this place is in what a source reads."""
    for name in before.get("tasks", ()) if place.startswith("tasks.") else ():
        sources = (graph["tasks"].get(name, {}).get("source") for graph in (before, now))
        was, became = map(reads_of, sources)
        if was is None or became is None or not place.startswith(f"tasks.{name}.source."):
            continue
        source = name.rpartition("[")[0]
        raise OtherJob(
            f"source {source} read {_listed(was)}, and is to read {_listed(became)}: its positions "
            "mean nothing there",
            where=where,
            remedy="start the job with what it read. Once it has settled with that, upgrade=True "
            "lets you add to the list or, with drop_state=, take from it; a source of another name "
            "may read anything",
        )


def _listed(paths: list[str]) -> str:
    more = len(paths) - _FILES_SHOWN
    return ", ".join(paths[:_FILES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def differences(before: Any, now: Any, where: str = "") -> Iterable[tuple[str, str, str]]:
    """Where two pieces of plain data differ, the innermost places first.

    Examples
    --------
    >>> list(differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}))
    [('a.1.b', '2', '3')]
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(k for k in now if k not in before)]:
            place = f"{where}.{key}" if where else str(key)
            yield from differences(before.get(key), now.get(key), place)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{where}.{number}")
    elif before != now and json.dumps(before) != json.dumps(now):  # NaN equals NaN here
        yield where, _short(before), _short(now)


def _short(value: Any) -> str:
    if value is None or isinstance(value, dict):
        return "nothing" if value is None else "{...}"
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
