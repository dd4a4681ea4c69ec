"""Arrow values: batches, keys, rows, schemas, and how they are written as bytes."""
