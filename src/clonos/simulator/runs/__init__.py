"""What a seed decides: the faults of a run, and operators' commands to the job meanwhile."""
