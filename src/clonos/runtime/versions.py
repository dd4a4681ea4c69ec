"""What has to be the same in all processes of a job, or a replay is not bit-exact."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from typing import Final

import numpy as np
import pyarrow as pa

from clonos.version import VERSION

HASH_SEED: Final = "PYTHONHASHSEED"
"""Spark sets it for its workers; the driver's own does not matter."""


def installed() -> dict[str, str]:
    """What this process runs on, by name; "" for what it has not.

    Examples
    --------
    >>> installed()["clonos"] == VERSION
    True
    """
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "clonos": VERSION,
        "PyArrow": pa.__version__,
        "NumPy": np.__version__,
        "Polars": _version("polars"),
        HASH_SEED: os.environ.get(HASH_SEED, ""),
    }


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
