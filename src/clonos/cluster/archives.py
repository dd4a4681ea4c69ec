"""Archives of Python files on the path of Spark's workers: how to avoid what they cost.

Spark puts ``pyspark.zip`` and Py4J's archive in front of ``sys.path``. They contain sources only,
so a daemon compiles whatever it imports from them, each time it starts. And for each task PySpark
calls `importlib.invalidate_caches`. Older versions of Python (3.11 is one) then read the tables of
contents of all archives anew: over a thousand files, in Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from zipimport import zipimporter


def leave_out() -> None:
    """Import Spark's files from where pip has installed them, if these are the same.

    They are if ``SPARK_HOME`` is the installed package itself, as with a local master. Elsewhere
    the archives stay.
    """
    sys.path[:] = without_archives(sys.path, os.environ)


def without_archives(path: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The path without the archives of Spark's home, if an installed package is this home."""
    home = environment.get("SPARK_HOME", "")
    others = [entry for entry in path if not _is_of(home, entry)]
    spark, py4j = (PathFinder.find_spec(package, others) for package in ("pyspark", "py4j"))
    if not home or spark is None or spark.origin is None or py4j is None:
        return list(path)
    is_home = Path(spark.origin).parent.resolve() == Path(home).resolve()
    return others if is_home else list(path)


def _is_of(home: str, entry: str) -> bool:
    library = Path(home, "python", "lib")
    return entry.endswith(".zip") and Path(entry).parent.resolve() == library.resolve()


def keep_as_read() -> None:
    """The archives that are there now never change: what Python has read of them stays valid."""
    for finder in sys.path_importer_cache.values():
        if isinstance(finder, zipimporter):
            finder.invalidate_caches = _nothing  # type: ignore[method-assign]


def _nothing() -> None:
    pass
