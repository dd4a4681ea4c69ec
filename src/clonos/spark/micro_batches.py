"""What a function that Spark calls with each micro-batch may raise.

When a query is stopped, Spark searches the text of what the function raised for the name of an
interruption, with a regular expression that recurses once per character. Behind the words "An error
occurred while calling" the page that an error of Java has for its text is too long for that: the
query's thread dies of a StackOverflowError.
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
"""What Spark takes for the end of a query that is being stopped, and not for a failure."""


class MicroBatchFailed(RuntimeError):
    """What Spark raised in a micro-batch, without Java's page about it."""


@contextmanager
def short_errors(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Say in one line what Spark raises here.

    Parameters
    ----------
    is_stopping
        Whether the query is being stopped: whatever Spark raises is then because of that.

    Raises
    ------
    MicroBatchFailed
        Spark has raised something.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise MicroBatchFailed(_INTERRUPTED if is_stopping() else in_short(error)) from None
