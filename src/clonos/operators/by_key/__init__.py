"""Rows kept by key: joins, duplicates, the rows before, rows in order."""
