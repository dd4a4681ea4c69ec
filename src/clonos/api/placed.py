"""Where the tasks of an operator run: in which chain, and in which slots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from clonos.api.settings import require_level
from clonos.errors import WrongType
from clonos.graph.logical import Edge, Vertex

if TYPE_CHECKING:
    from typing_extensions import Self

    from clonos.api.job import Job


class Placed:
    """Rows that flow from an operator to the next one."""

    def __init__(self, job: Job, vertex: Vertex, edge: Edge | None = None) -> None:
        self._job = job
        self._vertex = vertex
        self._edge = edge or Edge(vertex)

    def start_new_chain(self) -> Self:
        """Run the operators after it in tasks of their own. These share the slots of the tasks
        before them, unless they are in another :meth:`slot_group`."""
        return type(self)(self._job, self._vertex, replace(self._edge, is_chained=False))

    def with_persistence(self, level: Literal["memory", "local", "auto", "store"]) -> Self:
        """Keep the state of the operator that these rows come from at this level, whatever
        ``persistence`` of the job is.

        Operators that share a task share its state: if several say a level, the strictest counts.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job("counts", standbys=1)
        >>> words = job.source(clonos.sources.from_batches([], schema="word string"))
        >>> counts = words.key_by("word").window(clonos.tumbling("5 s")).agg(n=clonos.count())
        >>> counts.with_persistence("memory").sink(clonos.sinks.collect())
        >>> [task.level for task in job.compile().plan.tasks]
        ['store', 'memory']
        """
        options, graph = self._job.graph.options, self._job.graph
        history = "..." if options.keep is not None else None
        promised = options.guarantee, history, options.on_orphan, options.log
        require_level(level, options.standbys, *promised)
        graph.levels[self._vertex.id] = level
        return self

    def slot_group(self, name: str) -> Self:
        """Run the operators after it in other slots, those of the group `name`: on other cores, and
        they live on when the slots before them die.

        Tasks of a group share slots: slot i runs task i of each operator. An operator is in the
        group of the one it reads from. If it reads from several groups, it is in the group
        ``"default"``, where sources are, too.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job("enrich", parallelism=2)
        >>> lines = job.source(clonos.sources.from_batches([], schema="value string"))
        >>> asked = lines.slot_group("ask").map(lambda row: row.value, schema="answer string")
        >>> asked.sink(clonos.sinks.collect())
        >>> job.compile().plan.cells
        ((0,), (1,), (2,), (3,))
        """
        if not name:
            raise WrongType("slot_group without a name", remedy='write slot_group("ask")')
        return type(self)(self._job, self._vertex, replace(self._edge, group=name))
