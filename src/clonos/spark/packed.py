"""Functions for executors, which may have another version of clonos than the driver.

What a function consists of can be unpickled only where clonos is the same. So it travels in a
packet, inside a function of which Python itself is enough to unpickle it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle  # as Spark ships functions

from clonos.version import VERSION

_dumps: Callable[[Any], bytes] = cloudpickle.dumps


def packed(function: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """The same function, which raises `OtherVersion` where clonos has another version.

    Examples
    --------
    >>> list(packed(reversed)([1, 2]))
    [2, 1]
    """
    packet, version = _dumps(function), VERSION

    def run(batches: Any) -> Iterator[Any]:
        import pickle

        from clonos import version as theirs

        if version != theirs.VERSION:
            from clonos.errors import OtherVersion

            raise OtherVersion(
                f"the executor has clonos {theirs.VERSION}; it should have clonos {version}"
            )
        yield from pickle.loads(packet)(batches)  # noqa: S301 - the driver has made it

    return run
