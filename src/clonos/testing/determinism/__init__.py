"""Whether the operators of a job, given the same, do the same: in any process, at any time."""

from clonos.testing.determinism.check import (
    Checked,
    Finding,
    NotDeterministic,
    check_deterministic,
)

__all__ = ["Checked", "Finding", "NotDeterministic", "check_deterministic"]
