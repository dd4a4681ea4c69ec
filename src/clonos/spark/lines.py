"""Lines among the jobs of Spark's UI that say what goes on, and stay as long as they are true.

The description of a running job cannot be changed, so each line is a job of its own. A job without
tasks takes no core, is over at once, and stays in the list with its description and its time. The
list is bounded: Spark forgets the oldest jobs that are over. The newest line about each thing is
put there again before Spark forgets it, so that micro-batches of the same application do not
push it out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

LOOK_S: Final = 0.5
"""How often the number of jobs is checked."""

_KEPT: Final = "spark.ui.retainedJobs"
_ERRORS: Final = (Py4JError, PySparkException, OSError, AttributeError)
"""What is raised when Spark has stopped."""


class Lines:
    """The newest line about each thing, such as a task.

    Parameters
    ----------
    context
        The SparkContext.
    label
        Describes the jobs that the calling thread will start.

    Examples
    --------
    >>> lines = Lines(spark.sparkContext, label)  # doctest: +SKIP
    >>> lines.put("count[0]", "count[0] runs in slot 3")  # doctest: +SKIP
    """

    def __init__(self, context: Any, label: Callable[[str], None]) -> None:
        self._context, self._label = context, label
        kept = int(context.getConf().get(_KEPT) or 1000)
        self._every = kept // 2
        """After this many jobs a line is put again. Spark forgets a tenth of the jobs at a time."""
        self._known: dict[str, tuple[str, int]] = {}
        self._new: SimpleQueue[tuple[str, str] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="clonos-lines", daemon=True)
        self._is_begun = False

    def put(self, about: str, text: str) -> None:
        """Put a line soon; it replaces the line about the same thing."""
        if not self._is_begun:
            self._is_begun = True
            self._thread.start()
        self._new.put((about, text))

    def close(self) -> None:
        """Put no line again."""
        self._new.put(None)

    def _work(self) -> None:
        with contextlib.suppress(*_ERRORS):
            while True:
                try:
                    given = self._new.get(timeout=LOOK_S)
                except Empty:
                    self._repeat()
                    continue
                if given is None:
                    return
                self._show(*given)

    def _repeat(self) -> None:
        """Put lines again that Spark would forget, unless the lines alone are more than it
        keeps."""
        if not self._known or len(self._known) > self._every:
            return
        so_far = self._jobs()
        for about, (text, number) in list(self._known.items()):
            if so_far - number >= self._every:
                self._show(about, text)

    def _show(self, about: str, text: str) -> None:
        self._label(text)
        self._context._jsc.emptyRDD().count()  # noqa: SLF001 - Python's takes a core
        self._known[about] = text, self._jobs()

    def _jobs(self) -> int:
        """How many jobs the application has had."""
        return int(self._context._jsc.sc().dagScheduler().numTotalJobs())  # noqa: SLF001 - no other
