"""The versions of this process that must be the same in all processes of a job."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa

from clonos.nodes.versions import CPU, HASH_SEED, MACHINE
from clonos.version import VERSION


def installed() -> dict[str, str]:
    """The versions of this process, by name; "" for what it does not have.

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
        MACHINE: platform.machine(),
        CPU: _cpu_features(),
    }


@cache
def _cpu_features() -> str:
    """The CPU features that NumPy uses beyond its baseline (see ``NPY_DISABLE_CPU_FEATURES``)."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    return " ".join(config.get("SIMD Extensions", {}).get("found", ()))


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
