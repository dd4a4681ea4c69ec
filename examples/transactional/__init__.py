"""A sink of one's own, for a store that has transactions."""
