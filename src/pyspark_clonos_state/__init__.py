"""Spark looks for data sources in modules of this prefix: ``.format("clonos.state")``."""

from clonos.replay.data_source import StateSource as DefaultSource

__all__ = ["DefaultSource"]
