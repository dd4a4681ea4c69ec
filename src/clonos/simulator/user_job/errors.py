"""What is raised when a job cannot be simulated, and when its simulation finds something."""

from __future__ import annotations

from clonos.errors import ClonosError, DefinitionError


class CannotSimulate(DefinitionError):
    """A simulation has no Spark and no network, and nobody has said what stands in for them."""


class SimulationFailed(ClonosError):
    """A job has done in the simulator what it must not do.

    Attributes
    ----------
    seed
        Of the simulation; the same seed fails again.
    verdict
        "divergence", "check", "rows", the name of an error that has ended the job, or of an
        invariant of the protocol.
    """

    seed = -1
    verdict = ""
    advice = ""

    def repeat_with(self, how: str) -> None:
        """Say how this seed is run again."""
        self.remedy = "; ".join(filter(None, [self.advice, f"repeat it with {how}"]))


class Unanswered(BaseException):  # users' functions may well catch every Exception
    """A function was called for which nothing stands in."""
