"""Listeners of a running job; modelled on PySpark's ``StreamingQueryListener``."""

from __future__ import annotations

from clonos.nodes.views import JobProgress, JobStarted, JobTerminated, LevelChanged, Recovery


class Listener:
    """Receives a job's events; override what you need, as in PySpark's ``StreamingQueryListener``.

    Each listener has its own thread and bounded queue. If it is slow it misses the oldest events;
    if it raises it is called again with the next one; the job gets one warning about either.
    Nothing ever waits for a listener.

    Examples
    --------
    Every progress report as a line of JSON:

    >>> class Lines(Listener):
    ...     def on_progress(self, progress):
    ...         print(progress.json)
    ...     def on_recovery(self, recovery):
    ...         print(recovery.json)
    >>> running = job.start(spark, listeners=[Lines()])  # doctest: +SKIP
    >>> from clonos.core.plan import Incarnation
    >>> stages = {"detected": 7.0, "fenced": 7.002, "live": 7.04}
    >>> Lines().on_recovery(Recovery(3, "count[1]", Incarnation(1, 2), stages, 57))
    {"task": "count[1]", "incarnation": "1.2", "ms": {"detected": 0.0, ... "live": 40.0}, "log": ...
    """

    def on_started(self, started: JobStarted) -> None:
        """The job begins and requests its slots."""

    def on_progress(self, progress: JobProgress) -> None:
        """A progress report, once a second (``progress_s``)."""

    def on_recovery(self, recovery: Recovery) -> None:
        """A task is live again after it was lost: when each stage was reached.

        A recovery that another failure has interrupted is not reported, but the task's next one is.
        """

    def on_level(self, changed: LevelChanged) -> None:
        """A task with ``persistence="auto"`` keeps its next layers at another level."""

    def on_terminated(self, terminated: JobTerminated) -> None:
        """The job is over, for whatever reason. This is the last event."""
