"""The processes of a simulated cluster: the nodes of production, on simulated ports."""
