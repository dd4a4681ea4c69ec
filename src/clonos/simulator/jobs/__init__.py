"""Random jobs for the simulator, whose right output is known."""
