"""The way back: rows that come from further down the same job."""

from __future__ import annotations

from clonos.api.streams import Stream
from clonos.errors import BadGraph, WrongType


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
        if not stream.schema.equals(self.schema):
            raise WrongType(
                f"rows of ({', '.join(stream.schema.names)}) are fed back where "
                f"({', '.join(self.schema.names)}) is declared",
                where=name,
                remedy="map them to the declared columns and types first",
            )
        if isinstance(stream, Feedback):
            raise BadGraph(
                "a feedback is fed with another feedback",
                where=name,
                remedy="feed it with a stream that operators make from its rows",
            )
        fed[self._vertex.id] = stream._edge  # noqa: SLF001 - of the same class
