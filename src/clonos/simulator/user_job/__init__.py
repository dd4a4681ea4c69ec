"""A user's own job in the simulated cluster: its rows, its services, its invariants.

Nothing here simulates: the cluster, its faults and the checks are those of the simulator's own
jobs. This package adds what stands in for Spark and for services, and tells whose fault a failure
is.
"""

from clonos.simulator.user_job.errors import CannotSimulate, SimulationFailed
from clonos.simulator.user_job.simulation import Simulation, simulate

__all__ = ["CannotSimulate", "Simulation", "SimulationFailed", "simulate"]
