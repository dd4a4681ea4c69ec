"""The version of clonos: the same in all processes of a job."""

from typing import Final

VERSION: Final = "0.1.0"
