"""What a seed decides: the faults of a run, and what somebody asks of the job meanwhile."""
