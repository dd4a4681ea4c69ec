"""Spark's Python daemon, which has imported what a slot needs.

Spark forks its Python workers from a daemon that imports next to nothing, so each worker imports
everything anew, into memory of its own. What is imported here is imported once, and shared.

A library that starts threads may not survive a fork. Of those here, NumPy's OpenBLAS ends its
threads before a fork, and starts none if ``OMP_NUM_THREADS`` is 1, as Spark sets it; Arrow starts
its threads when they are first used, but for one of its allocator (jemalloc), which forks well.

It is used if ``spark.python.daemon.module`` is the name of this module, which executors must be
able to import; :func:`clonos.spark.session.get_or_create` sets it for local masters.
"""

from __future__ import annotations

import gc

import pyarrow as pa
import pyspark.worker  # noqa: F401 - for every worker
from pyspark.daemon import manager

import clonos.runtime.slot
import clonos.spark.slots
import clonos.transport.tls  # noqa: F401 - for every slot

# Arrow imports pandas, if it is there, when it first makes Python values of a column of text: half
# a second of every slot, in the midst of its first step.
pa.array([""]).to_numpy(zero_copy_only=False)

gc.freeze()  # workers that collect garbage need not look at it, nor copy its pages

if __name__ == "__main__":
    manager()
