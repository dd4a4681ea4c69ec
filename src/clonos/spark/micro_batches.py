"""Short errors for functions that Spark calls with each micro-batch.

When a query is stopped, Spark searches the text of the error that the function raised for the name
of an interruption. Its regular expression recurses once per character after the words "An error
occurred while calling". The text of an error of Java is too long for that: the query's thread dies
of a StackOverflowError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from clonos.spark.slots import in_short

_INTERRUPTED: Final = (
    "the query is being stopped\n"
    "py4j.protocol.Py4JJavaError: An error occurred while calling it\n"
    ": java.lang.InterruptedException"
)
"""A text by which Spark knows that a query was stopped, and has not failed."""


class MicroBatchFailed(RuntimeError):
    """An error of Spark in a micro-batch, without Java's stack trace."""


def interrupted() -> MicroBatchFailed:
    """The error of a micro-batch that ends because its query is being stopped."""
    return MicroBatchFailed(_INTERRUPTED)


@contextmanager
def short_errors(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Replace errors of Spark by short ones.

    Parameters
    ----------
    is_stopping
        Whether the query is being stopped: an error of Spark is then a consequence of that.

    Raises
    ------
    MicroBatchFailed
        Spark has raised something.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise (interrupted() if is_stopping() else MicroBatchFailed(in_short(error))) from None
