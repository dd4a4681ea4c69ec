"""Spark's Python daemon, with the modules that a slot needs already imported.

Spark forks its Python workers from a daemon that imports next to nothing, so each worker imports
everything anew, into its own memory. Modules imported here are imported once, and shared.

A library that starts threads may not survive a fork. Of those here, NumPy's OpenBLAS ends its
threads before a fork, and starts none if ``OMP_NUM_THREADS`` is 1, as Spark sets it; Arrow starts
its threads when they are first used, except one of its allocator (jemalloc), which survives forks.

Spark puts its own Python files on the path as archives, :mod:`clonos.cluster.archives` says what
these would cost.

It is used if ``spark.python.daemon.module`` is the name of this module, which executors must be
able to import; :func:`clonos.spark.session.get_or_create` sets it for local masters.
"""

from __future__ import annotations

import gc

from clonos.cluster import archives

archives.leave_out()  # before anything of Spark's is imported

import pyarrow as pa  # noqa: E402 - see above
import pyspark.worker  # noqa: E402, F401 - for every worker
from pyspark.daemon import manager  # noqa: E402

import clonos.graph.code  # noqa: E402 - for every job
import clonos.runtime.slot  # noqa: E402
import clonos.spark.identity  # noqa: E402
import clonos.transport.tls  # noqa: E402, F401 - for every slot
from clonos.runtime.versions import installed  # noqa: E402

# Arrow imports pandas, if installed, when it first makes Python values of a text column. Otherwise
# that would take half a second in the first step of every slot.
pa.array([""]).to_numpy(zero_copy_only=False)

installed()  # looks for packages along the whole path, once for all workers
archives.keep_as_read()
gc.freeze()  # workers need not traverse these objects, nor copy their pages

if __name__ == "__main__":
    manager()
