"""Which node can be reached from which, in a graph that grows: the transitive closure of a stream.

``python -m examples.loops.reachability`` runs it on Spark and compares it with a recomputation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import clonos

EDGES = "node long, kind string, other long"
Edge = tuple[int, str, int]


class Node(clonos.Process):
    """Knows the next nodes, and from where it can be reached; tells the next of what is new."""

    def open(self, ctx: Any) -> None:
        self.next, self.origins = ctx.state("next"), ctx.state("origins")

    def on_row(self, row: Any, ctx: Any) -> Iterator[Edge]:
        after, origins = self.next.get([]), self.origins.get([])
        if row.kind == "edge" and row.other not in after:
            self.next.set([*after, row.other])
            for origin in (row.node, *origins):
                yield row.other, "reached from", origin
        elif row.kind == "reached from" and row.other not in origins:
            self.origins.set([*origins, row.other])
            yield row.node, "found", row.other
            for node in after:
                yield node, "reached from", row.other


def build(edges: Any, **settings: Any) -> clonos.Job:
    """A job over a source of edges: rows (node, "edge", the node that it leads to)."""
    job = clonos.Job("reachability", **settings)
    closure(job, job.source(edges, name="edges", parallelism=1))
    return job


def closure(job: clonos.Job, edges: clonos.Stream) -> None:
    """What is found goes to a sink; what is new goes round."""
    again = job.feedback(EDGES, name="again")
    rows = edges.rebalance().union(again, name="enter")
    told = rows.key_by("node").process(Node(), EDGES, name="node")
    again.feed(told.filter(lambda row: row.kind == "reached from", name="go round"))
    found = told.filter(lambda row: row.kind == "found", name="found")
    found.sink(clonos.sinks.collect(), name="pairs")


def random_edges(count: int, nodes: int, seed: int = 0) -> list[Edge]:
    """Edges of a random graph."""
    random = Random(seed)
    return [(random.randrange(nodes), "edge", random.randrange(nodes)) for _ in range(count)]


def recomputed(edges: Iterable[Edge]) -> set[tuple[int, int]]:
    """(origin, node) for each node that can be reached from an origin, in at least one step."""
    after: dict[int, set[int]] = {}
    for node, _, other in edges:
        after.setdefault(node, set()).add(other)
    found = set()
    for origin in after:
        ahead = [origin]
        while ahead:
            for node in after.get(ahead.pop(), ()):
                if (origin, node) not in found:
                    found.add((origin, node))
                    ahead.append(node)
    return found


def pairs(table: Any) -> list[tuple[int, int]]:
    """What the job has found, as :func:`recomputed` has it."""
    return sorted((row["other"], row["node"]) for row in table.to_pylist())


def main() -> int:
    """Return 0 if the job has found what a recomputation finds, each pair once."""
    edges = random_edges(300, 200)
    source = clonos.sources.from_batches([edges[i : i + 10] for i in range(0, 300, 10)], EDGES)
    found = pairs(build(source, parallelism=2).run().table())
    is_right = found == sorted(recomputed(edges))
    sys.stdout.write(f"{len(found)} pairs, {'as' if is_right else 'NOT as'} recomputed\n")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
