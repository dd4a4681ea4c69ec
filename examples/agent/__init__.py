"""Agents that think, look things up, ask a human and pay, while their workers are killed."""
