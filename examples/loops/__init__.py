"""Two jobs in which rows go round: retries with a delay, and reachability in a growing graph."""
