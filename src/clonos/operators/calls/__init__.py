"""Services and effects: what may be asked when, by which rows, and what comes of it."""
