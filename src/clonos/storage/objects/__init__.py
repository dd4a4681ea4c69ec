"""A journal where there are only objects: on object stores, HDFS, and mounts of several machines.

* :mod:`~clonos.storage.objects.stores`: what such a place must offer, and its adapters;
* :mod:`~clonos.storage.objects.tree`: files and folders, and changes to them;
* :mod:`~clonos.storage.objects.chain`: the changes in order, one object each;
* :mod:`~clonos.storage.objects.disk`: all of this as a :class:`~clonos.storage.files.Disk`, with a
  lock.
"""

from __future__ import annotations

from clonos.storage.objects.disk import ObjectDisk
from clonos.storage.objects.stores import is_object_store, objects_of

__all__ = ["ObjectDisk", "is_object_store", "objects_of"]
