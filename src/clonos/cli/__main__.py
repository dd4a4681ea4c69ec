"""``python -m clonos.cli``."""

import sys

from clonos.cli import main

sys.exit(main())
