"""What operators remember: facts, keyed state, pieces, rows by key, timers; and its layers."""
