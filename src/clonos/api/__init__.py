"""What users chain: jobs, streams, windows, joins."""
