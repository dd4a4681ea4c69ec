"""Checks that a job's operators do the same with the same input, in any process, at any time."""

from clonos.errors import NotDeterministic
from clonos.testing.determinism.check import Checked, Finding, check_deterministic

__all__ = ["Checked", "Finding", "NotDeterministic", "check_deterministic"]
