"""The processes of a job as sans-I/O objects: they hear events, decide, and call ports."""
