"""Your own logic by key, with state, timers and calls."""
