"""The processes of a job as sans-I/O objects: they take events, decide, and call ports."""
