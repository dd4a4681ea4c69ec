"""Operators' state: facts, values by key, pieces, rows by key, timers; and its layers."""
