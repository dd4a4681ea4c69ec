"""Spark looks for data sources in modules of this prefix: ``.format("clonos.log")``."""

from clonos.replay.data_source import LogSource as DefaultSource

__all__ = ["DefaultSource"]
