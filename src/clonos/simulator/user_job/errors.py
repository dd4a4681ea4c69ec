"""Errors for a job that cannot be simulated, and for one whose simulation finds a fault."""

from __future__ import annotations

from clonos.errors import ClonosError, DefinitionError


class CannotSimulate(DefinitionError):
    """A job cannot be simulated as given: it needs a stand-in for Spark or a network."""


class SimulationFailed(ClonosError):
    """The simulator has found a fault in a job.

    Attributes
    ----------
    seed
        The seed of the simulation; it fails again each time.
    verdict
        "divergence", "check", "rows", the name of the error that ended the job, or of an invariant
        of the protocol.
    """

    seed = -1
    verdict = ""
    advice = ""

    def repeat_with(self, how: str) -> None:
        """Add to the remedy how to run this seed again."""
        self.remedy = "; ".join(filter(None, [self.advice, f"repeat it with {how}"]))


class Unanswered(BaseException):  # users' functions may well catch every Exception
    """A function was called that has no stand-in."""
