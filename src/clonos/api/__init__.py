"""What users import: jobs, streams, windows, processes, sources, sinks."""
