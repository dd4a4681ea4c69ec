"""The description of a sink: what a slot or the driver has to set up for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from clonos.operators.base import Operator
from clonos.operators.identity import IdentityOperator


@dataclass(frozen=True)
class SinkSpec:
    """What becomes of a sink's rows.

    Parameters
    ----------
    kind
        "collect", "console", "callback", "parquet", "table" or "spark_write".
    head
        Makes the operator of the sink's chain.
    path
        Folder that the tasks write to themselves.
    fn
        The callback, or the function that writes a DataFrame; called in the driver.
    schema
        Of the rows; filled in when the sink is attached to a stream.
    """

    kind: str
    head: Callable[[], Operator] = IdentityOperator
    path: str | None = None
    fn: Callable[..., Any] | None = None
    schema: pa.Schema | None = None

    def with_schema(self, schema: pa.Schema) -> SinkSpec:
        """The same sink for rows of this schema."""
        return replace(self, schema=schema)

    def __getstate__(self) -> dict[str, Any]:
        # The driver calls it; slots need not be able to hold what it captures.
        return {**self.__dict__, "fn": None}
