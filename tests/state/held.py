"""How many bytes are held at once, by Python, numpy and Arrow."""

from __future__ import annotations

import ctypes
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Afterwards the function says at most how many bytes were held at once beside those before."""
    pool, usual = pa.proxy_memory_pool(pa.system_memory_pool()), pa.default_memory_pool()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))  # it must not end before its arrays do
    peak = 0
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield lambda: peak + pool.max_memory()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        pa.set_memory_pool(usual)
