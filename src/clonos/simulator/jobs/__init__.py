"""Random jobs for the simulator, whose correct output is known."""
