"""What errors of sinks say."""

from __future__ import annotations

from typing import Final

NO_FORMAT: Final = (
    "see Spark's error; a format of another package needs its jars: spark.jars.packages"
)
"""What to do if Spark does not begin to write."""
