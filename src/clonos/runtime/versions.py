"""What has to be the same in all processes of a job, or a replay is not bit-exact."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clonos.version import VERSION

HASH_SEED: Final = "PYTHONHASHSEED"
"""Spark sets it for its workers."""
MACHINE: Final = "machine"
CPU: Final = "CPU features of NumPy"
"""NumPy chooses its functions by what the processor can do, and they differ in the last bit: with
AVX-512 and without, `exp`, `log`, `tan`, `power` and others do. Arrow chooses, too (`simd_level`),
but its sums, means, variances and products have the same bits at every level."""
OF_SLOTS: Final = frozenset({HASH_SEED, MACHINE, CPU})
"""What must be the same in all slots; the driver replays nothing, its own does not matter."""


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
        MACHINE: platform.machine(),
        CPU: _cpu_features(),
    }


def is_fixed(hash_seed: str) -> bool:
    """Whether sets of strings have the same order in every process with this hash seed.

    Examples
    --------
    >>> is_fixed("0"), is_fixed("random"), is_fixed("")
    (True, False, False)
    """
    return hash_seed.isascii() and hash_seed.isdigit()


@cache
def _cpu_features() -> str:
    """Those that NumPy uses beyond what it was built for (see ``NPY_DISABLE_CPU_FEATURES``)."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    return " ".join(config.get("SIMD Extensions", {}).get("found", ()))


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
