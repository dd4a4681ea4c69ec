"""A whole cluster in one thread, under virtual time, with seeded faults and invariant checks.

Slots and the driver are production's own nodes, core included. The adapters behind their ports are
simulated: network, stores, journal, Spark, clocks and the outside world. Everything is drawn from
one seed, so that a failure can be reproduced.
Graphs with cycles are left out: markers must align on all inputs in this version.
"""

from clonos.simulator.command import main

__all__ = ["main"]
