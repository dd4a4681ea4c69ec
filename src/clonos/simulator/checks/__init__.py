"""Invariants: those checked while a job runs, after every step, and when the job is done."""
