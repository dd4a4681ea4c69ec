"""A user's own job in the simulated cluster: its rows, its services, its invariants.

Cluster, faults and checks are those that the simulator uses for its own jobs. This package adds
stand-ins for Spark and for services, and finds out whether the job or Clonos caused a failure.
"""

from clonos.errors import CannotSimulate, SimulationFailed
from clonos.simulator.user_job.simulation import Simulation, simulate

__all__ = ["CannotSimulate", "Simulation", "SimulationFailed", "simulate"]
