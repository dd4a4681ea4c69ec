"""``python -m clonos_bench``."""

import sys

from clonos_bench.command import main

sys.exit(main())
