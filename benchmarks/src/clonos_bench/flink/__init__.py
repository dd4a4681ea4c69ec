"""Apache Flink as a peer: the same events and queries, in processes of its own."""
