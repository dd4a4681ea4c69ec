"""Spark looks for data sources in modules of this prefix: makes ``.format("clonos")`` known."""

from clonos.spark.tables import TableSource as DefaultSource

__all__ = ["DefaultSource"]
