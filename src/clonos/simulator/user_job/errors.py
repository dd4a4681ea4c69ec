"""What is raised when a job cannot be simulated, and when its simulation finds a fault."""

from __future__ import annotations

from clonos.errors import ClonosError, DefinitionError


class CannotSimulate(DefinitionError):
    """A job cannot be simulated as it is given: something must stand in for Spark or a network."""


class SimulationFailed(ClonosError):
    """A job did something in the simulator that it must not do.

    Attributes
    ----------
    seed
        Of the simulation; the same seed fails again.
    verdict
        "divergence", "check", "rows", the name of the error that ended the job, or of an invariant
        of the protocol.
    """

    seed = -1
    verdict = ""
    advice = ""

    def repeat_with(self, how: str) -> None:
        """Say in the remedy how to run this seed again."""
        self.remedy = "; ".join(filter(None, [self.advice, f"repeat it with {how}"]))


class Unanswered(BaseException):  # users' functions may well catch every Exception
    """A function was called for which nothing stands in."""
