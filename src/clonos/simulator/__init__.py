"""A whole cluster in one thread, under virtual time, with seeded faults and invariant checks.

The core is the one that runs in production; network, slots, driver, stores, clock and the world
outside are simulated. Everything is drawn from one seed, so that a failure can be seen again.
Graphs with cycles are left out: markers must align on all inputs in this version.
"""

from clonos.simulator.command import main

__all__ = ["main"]
