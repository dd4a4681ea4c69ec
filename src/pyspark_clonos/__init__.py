"""Spark looks for data sources in modules of this prefix: makes ``.format("clonos")`` known."""

from clonos.sinks.data_source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
