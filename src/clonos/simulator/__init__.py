"""A whole cluster in one thread, under virtual time, with seeded faults and invariant checks.

Slots and driver are the nodes that run in production, with the core in them; what stands behind
their ports is simulated: network, stores, journal, Spark, clocks and the world outside. Everything
is drawn from one seed, so that a failure can be seen again.
Graphs with cycles are left out: markers must align on all inputs in this version.
"""

from clonos.simulator.command import main

__all__ = ["main"]
