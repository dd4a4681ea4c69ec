"""The way back: rows that come from further down the same job."""

from __future__ import annotations

from dataclasses import replace

from clonos.api.streams import Stream
from clonos.columns.schema import wider
from clonos.errors import BadGraph, WrongType
from clonos.graph.logical import Edge
from clonos.operators import operations as op
from clonos.operators.router import Routing


class Feedback(Stream):
    """A stream that has no source yet: :meth:`feed` says where its rows come from.

    See :meth:`clonos.Job.feedback`.
    """

    def feed(self, stream: Stream) -> None:
        """Let the rows of `stream` come out here. They have to be made from this stream's rows."""
        name, fed = self._vertex.name, self._job._graph.feedback  # noqa: SLF001 - its own job
        if stream._job is not self._job:  # noqa: SLF001 - of the same class
            raise BadGraph("a stream of another job cannot be fed back", where=name)
        if fed[self._vertex.id] is not None:
            raise BadGraph(
                "this feedback is already fed",
                where=name,
                remedy="unite the streams first: a.union(b)",
            )
        both = wider(self.schema, stream.schema)
        if both is None:
            raise WrongType(
                f"rows of ({', '.join(stream.schema.names)}) are fed back where "
                f"({', '.join(self.schema.names)}) is declared",
                where=name,
                remedy="map them to the declared columns and types first",
            )
        if not both.equals(self.schema):
            raise WrongType(
                "a column that may be null is fed back where it is declared NOT NULL",
                where=name,
                remedy="leave NOT NULL out of the schema of job.feedback(...)",
            )
        if isinstance(stream, Feedback):
            raise BadGraph(
                "a feedback is fed with another feedback",
                where=name,
                remedy="feed it with a stream that operators make from its rows",
            )
        edge = stream._edge  # noqa: SLF001 - of the same class
        if not stream.schema.equals(self.schema):
            # What reads the loop was defined with rows of the declared schema.
            widened = self._job.graph.add(
                "widen",
                None,
                schema=self.schema,
                parallelism=None,
                operation=op.Widen(self.schema),
                edges=(Edge(edge.vertex, Routing.FORWARD),),
            )
            edge = replace(edge, vertex=widened)
        fed[self._vertex.id] = edge
