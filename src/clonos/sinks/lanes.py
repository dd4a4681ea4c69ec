"""What a sink that writes itself is given: who writes (a *lane*), and what (*outputs*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

_LIVES_OF_A_TERM = 1 << 32


@dataclass(frozen=True)
class Lane:
    """One task of a sink, in one of its lives.

    Attributes
    ----------
    run
        Of the job: its checkpoint has it, so all its restarts share it, and no other job does.
    operator
        The sink's name.
    number
        Of the task in its sink.
    incarnation
        Of the task's life (a *fencing token*): every later life has a higher one.
    began
        The last number before the job went back in time, if it has: outputs up to there that the
        store does not have were discarded.

    Examples
    --------
    >>> Lane("a1b2", "out", 3, 7).name
    'a1b2/out/3'
    """

    run: str
    operator: str
    number: int
    incarnation: int = 0
    began: int = 0

    @property
    def name(self) -> str:
        """Of the lane, whichever life it has: what a mark is kept under."""
        return f"{self.run}/{self.operator}/{self.number}"

    @property
    def task(self) -> str:
        """As errors name it."""
        return f"{self.operator}[{self.number}]"


def incarnation_number(term: int, n: int) -> int:
    """A life's incarnation as one number, which a database can keep and compare.

    Examples
    --------
    >>> incarnation_number(1, 9) < incarnation_number(2, 1) < 2**63
    True
    """
    return term * _LIVES_OF_A_TERM + n


class OutputKey(NamedTuple):
    """The name of an output in its lane; keys grow. Within a generation, `seq` grows by 1."""

    generation: int
    seq: int


class Output(NamedTuple):
    """A batch of rows that is durable in the job, and is to take effect once."""

    key: OutputKey
    batch: pa.RecordBatch


class OutputWriter(Protocol):
    """A sink that puts its output into the world itself, where it runs.

    One life of a task has one, used by one thread.
    """

    def write(self, outputs: Sequence[Output]) -> None:
        """Let a group of outputs take effect, in this order; those that already did change nothing.

        Raises
        ------
        StoreAway
            It cannot be done for the moment: the same group may be tried again.
        Fenced
            A later life of the task writes: nothing was done, and nothing will be.
        """

    def close(self) -> None:
        """The life is over: let go of connections. Raises nothing."""
