"""Exports a job's progress to monitoring systems. Each export is a listener, nothing more."""
