"""Nexmark: an online auction's persons, auctions and bids, and the queries that Beam runs on them.

The generator makes the same event for the same id, whoever asks and from wherever it starts.

Examples
--------
>>> from clonos_bench.nexmark import Generator
>>> Generator(events=1000).rows("bid")
920
"""

from __future__ import annotations

from clonos_bench.nexmark.generator import KINDS, Generator
from clonos_bench.nexmark.source import events, side_input, write_parquet

__all__ = ["KINDS", "Generator", "events", "side_input", "write_parquet"]
