"""The places of a job's sinks, which are claimed before anything is written there.

If another graph is to go on, the places of its new sinks are claimed before the switch: afterwards
it would be too late to refuse it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from clonos.errors import ClonosError, SinkFailed
from clonos.graph.compile import CompiledJob
from clonos.sinks.writers import Claims, FolderClaim, TableWriter
from clonos.storage.files import Durability
from clonos.upgrade.renamed import has_a_trace
from clonos.upgrade.shape import Shape


def claims_of(
    compiled: CompiledJob, durability: Durability, owner: str, only: Collection[str] | None = None
) -> Claims:
    """The claims of all sinks, or of some."""
    tasks = Counter(task.sink for task in compiled.plan.tasks if task.sink is not None)
    sinks = {
        name: sink for name, (sink, _) in compiled.sinks.items() if only is None or name in only
    }
    return Claims(sinks, durability, owner, tasks)


def added_sinks(graph: Mapping[str, Any] | None, compiled: CompiledJob) -> list[str] | None:
    """Sinks that the graph before did not have, or had in other places; None: there was no such
    graph."""
    if graph is None:
        return None
    before, now = Shape(graph).sinks, Shape.of(compiled).sinks
    return [name for name, about in now.items() if before.get(name) != about]


def end_left(
    left: Collection[Sequence[str]], durability: Durability, owner: str, warn: Callable[[str], None]
) -> None:
    """The job is complete: end the tables to which it wrote with an earlier graph, because their
    readers wait for that."""
    for name, path in left:
        try:
            if "***" in path:  # as the description of the job has it
                raise SinkFailed("its keys are not known any more", where=path)
            FolderClaim(TableWriter(path, durability), owner, name).end()
        except ClonosError as error:
            warn(
                f"the table of {name}, a sink that the job no longer has, could not be ended, so "
                f"its readers wait for ever: {error.where}: {error.sentence}"
            )


@contextmanager
def claimed(
    before: Shape,
    graph: Mapping[str, Any],
    compiled: CompiledJob,
    durability: Durability,
    owner: str,
) -> Iterator[None]:
    """Claim the places of new sinks for what follows; if it fails, give them up.

    Raises
    ------
    CannotUpgrade
        A sink has another name, and its place is claimed under the former one; or its rows would
        have other columns than a table.
    OutputExists
        A place has another owner, or output.
    """
    added = added_sinks(graph, compiled) or []
    claims = claims_of(compiled, durability, owner, added)
    kept = claims_of(compiled, durability, owner, set(compiled.sinks) - set(added))
    for former, name in before.renamed.items():
        if claims.has(name):
            raise has_a_trace(former, "the place of its output has its name")
    schemas = {name: schema for name, (_, schema) in compiled.sinks.items()}
    kept.require(schemas)
    try:
        claims.begin(schemas, is_new=True, added=added)
        yield
    except BaseException:
        claims.withdraw(only_fresh=True)  # a place may be that of the job as it was, spelled anew
        raise
