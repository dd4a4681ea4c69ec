"""PySpark's daemon with everything imported that slots need: a worker is forked, and ready.

For measurements of many short jobs: a slot's own start is no part of what they measure, and takes
a third of a second of CPU time otherwise. ``run.session(..., is_warm=True)`` uses it.
"""

from __future__ import annotations

import importlib
from typing import Final

from pyspark import daemon

MODULES: Final = ("pyspark.worker", "clonos.runtime.slot", "clonos.api.job", "clonos.nexmark")

if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    daemon.manager()
