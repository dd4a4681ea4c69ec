"""Spark's Python daemon, which has imported much of what a slot needs.

Spark forks its Python workers from a daemon that imports next to nothing: libraries such as NumPy
and PyArrow start threads, which do not survive a fork. So each worker imports everything anew. What
starts no thread may be imported here, once: a slot is there sooner, and shares that memory.

It is used if ``spark.python.daemon.module`` is the name of this module, which executors must be
able to import; :func:`clonos.spark.session.get_or_create` sets it for local masters.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401 - for every worker
from pyspark.daemon import manager

import clonos.nodes.slot
import clonos.transport.tls  # noqa: F401 - for every slot

if __name__ == "__main__":
    manager()
