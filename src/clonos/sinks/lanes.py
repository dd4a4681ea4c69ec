"""Lanes and outputs, in sinks whose tasks write themselves: the writers, and what they write."""

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
        The job's random name. It is in the checkpoint, so all restarts share it, and no other job
        has it.
    operator
        The sink's name.
    number
        The task's index in its sink.
    incarnation
        The number of the task's life (a *fencing token*): every later life has a higher one.
    began
        The last output number before a rewind, if there was one: outputs up to it that the store
        does not have were discarded.

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
        """The lane's name, the same in all lives, under which its mark is kept."""
        return f"{self.run}/{self.operator}/{self.number}"

    @property
    def task(self) -> str:
        """The task's name in errors."""
        return f"{self.operator}[{self.number}]"


def incarnation_number(term: int, n: int) -> int:
    """An incarnation as one number, which a database can store and compare.

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
    """A batch of rows that is durable in the job, and must take effect once."""

    key: OutputKey
    batch: pa.RecordBatch


class OutputWriter(Protocol):
    """The writer of a sink task that writes its output itself.

    Each life of a task has its own, used by one thread.
    """

    def write(self, outputs: Sequence[Output]) -> None:
        """Write a group of outputs, in this order; those already written change nothing.

        Raises
        ------
        StoreAway
            The store cannot be reached for the moment: retry the same group.
        Fenced
            A later life of the task writes: nothing was written, and nothing will be.
        """

    def close(self) -> None:
        """The life is over: close connections. Raises nothing."""
