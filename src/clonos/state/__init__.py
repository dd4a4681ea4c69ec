"""Operators' state: facts, keyed values, pieces, rows by key, timers; and its layers."""
