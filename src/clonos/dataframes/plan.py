"""Translates a graph to DataFrames, without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructType

from clonos import causal
from clonos.causal import process
from clonos.columns.schema import parse_schema
from clonos.dataframes import joins, windows
from clonos.dataframes.asking import require_asked_once
from clonos.dataframes.rows import Rows, Site
from clonos.dataframes.sources import rows_of, streams
from clonos.dataframes.stateless import plan_of
from clonos.errors import NotInSpark
from clonos.graph.logical import Edge, LogicalGraph, Vertex
from clonos.operators.router import Routing

REGISTERED = (joins, windows)
"""They register their operations when they are imported."""


class Plans:
    """The DataFrames of a job.

    Parameters
    ----------
    spark
        A session.
    graph
        Of the job.
    """

    def __init__(self, spark: Any, graph: LogicalGraph) -> None:
        self.spark = spark
        self._graph = graph
        self._made: dict[int, Rows] = {}

    def dataframe(self, vertex: Vertex) -> Any:
        """The output of an operation; a streaming DataFrame if its sources stream.

        Raises
        ------
        NotInSpark
            An operation upstream, or this one, has no plan with the same result.
        NotConnected
            It needs a log, and none has been started.
        """
        rows = self.rows(vertex)
        if require_asked_once(_before(vertex)) and process.access() is None:
            raise causal.NotConnected(
                "its functions ask for values that have to be logged, and this driver has no log",
                where=vertex.name,
                remedy="call causal.start(spark, directory) before; job.start and job.run do so by "
                "themselves",
            )
        return rows.visible

    def streams(self, vertex: Vertex) -> bool:
        """Whether the sources of an operation stream: all of them must, or none."""
        found = {each.name: streams(each.source) for each in _before(vertex) if each.source}
        streaming = [name for name, does in found.items() if does]
        still = [name for name, does in found.items() if does is False]
        if streaming and still:
            raise NotInSpark(
                f"the source {streaming[0]!r} streams, and {still[0]!r} does not",
                where=vertex.name,
                remedy="use look_up for the one that does not, or execution='tasks'",
            )
        return bool(streaming)

    def rows(self, vertex: Vertex) -> Rows:
        """The output of an operation, perhaps with functions still to be applied."""
        if vertex.id not in self._made:
            for each in _before(vertex):
                if each.id not in self._made:
                    self._made[each.id] = self._translated(each)
        return self._made[vertex.id]

    def _translated(self, vertex: Vertex) -> Rows:
        lineage = self._graph.options.lineage
        site = Site(self.spark, vertex, self.streams(vertex), self._graph.name, lineage)
        if self._graph.on_bad_record != "fail":
            how = self._graph.on_bad_record
            raise site.refusal(f"only tasks support on_bad_record={how!r}", "leave it out")
        if vertex.id in self._graph.feedback:
            raise site.refusal("only tasks run loops")
        site.require_distinct(vertex.schema)
        if vertex.source is not None:
            return self._checked(rows_of(vertex.source, site), site)
        inputs = [self._along(edge, site) for edge in vertex.edges]
        if vertex.sink is not None:
            return inputs[0]
        return self._checked(plan_of(vertex.operation, site, inputs), site)

    def _along(self, edge: Edge, site: Site) -> Rows:
        rows = self._made[edge.vertex.id]
        if edge.routing is Routing.BROADCAST:
            raise site.refusal("broadcast() gives each row as many times as there are tasks")
        if edge.routing is Routing.ROUND_ROBIN:
            rows = rows.applied
            return replace(rows, frame=rows.frame.repartition(site.vertex.parallelism))
        return rows

    @staticmethod
    def _checked(rows: Rows, site: Site) -> Rows:
        """Check that Spark's types are those of tasks."""
        if rows.steps:
            return rows
        wanted = site.vertex.schema
        names = [*wanted.names, *rows.hidden]
        if rows.frame.columns != names:
            raise site.refusal(f"its columns would be {rows.frame.columns}, not {names}")
        given = rows.frame.schema  # asked for already: each plan that is analysed takes time
        found = parse_schema(StructType(given.fields[: len(wanted)]))
        for mine, theirs in zip(wanted, found, strict=True):
            if mine.type != theirs.type:
                raise site.refusal(
                    f"column {mine.name!r} would be {theirs.type}, but is {mine.type} in tasks",
                    "cast it",
                )
        return rows


def _before(vertex: Vertex) -> Iterator[Vertex]:
    """A vertex and everything upstream of it, in order."""
    seen: dict[int, Vertex] = {}

    def visit(one: Vertex) -> None:
        if one.id not in seen:
            for edge in one.edges:
                visit(edge.vertex)
            seen[one.id] = one

    visit(vertex)
    return iter(seen.values())
