"""The driver's adapters: its loop, the journal, slots from Spark, listeners."""
