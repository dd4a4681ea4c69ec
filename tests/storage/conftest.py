"""Places for objects: a folder, obstore's own store in memory, and S3 itself, or what speaks like
it, if CLONOS_S3 has the URI of a place that may be filled (keys and endpoint are in the
environment, as obstore reads them).
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from clonos.storage.objects.stores import FolderObjects, Objects, RemoteObjects

PLACES = ("folder", "memory", "s3")


def objects_in(place: str, tmp_path: Path) -> Objects:
    """Where objects are; nobody else has any there."""
    if place == "folder":
        return FolderObjects(f"file://{tmp_path}/objects")
    if place == "memory":
        return RemoteObjects("memory:///")
    if "CLONOS_S3" not in os.environ:
        pytest.skip("CLONOS_S3 names no place")
    return RemoteObjects(f"{os.environ['CLONOS_S3'].rstrip('/')}/{secrets.token_hex(8)}")


def slow_clock() -> SimpleNamespace:
    """The module `time`, of whose stopwatch a hundred seconds have passed at each look."""
    ticks = itertools.count(0.0, 100.0)
    return SimpleNamespace(monotonic=lambda: next(ticks), time=time.time, sleep=time.sleep)
