"""A canary: changed code that runs beside a job, on the same rows, before it is put in place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol

from clonos.cluster.aside import Aside
from clonos.errors import AsideFailed, CannotReplace, ClonosError, NotEnded

FOLLOW: Final = "clonos.branch.canary:follow"
LOOKS: Final = 3
"""One look may be under way, the next one finds the newest steps, and the one after it has taken
them."""
CATCH_UP_S: Final = 60.0
"""Time to catch up, besides that between looks, before a canary is adopted."""
STOP_S: Final = 30.0
"""Time for a canary to come to its end."""


class Running(Protocol):
    """What a canary needs of its job."""

    @property
    def is_running(self) -> bool: ...
    def adopt(self, branch: Any, *, within: str | timedelta = ...) -> None: ...


class Canary:
    """Changed code that follows the live log of a job. :meth:`clonos.RunningJob.canary` makes it.

    It runs in its own process. It opens no sink, makes no effect, and changes nothing in the job,
    which does not wait for it.

    Attributes
    ----------
    replaces
        What was changed, for :meth:`clonos.RunningJob.adopt`.
    """

    def __init__(self, running: Running, aside: Aside, replaces: Any, every_s: float = 1.0) -> None:
        self.replaces, self._every_s = replaces, every_s
        self._running, self._aside = running, aside
        self._report: Any = None
        self._error: ClonosError | None = None
        self._changed = threading.Condition()
        self._is_over = self._is_adopted = False
        self._adopting = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="clonos-canary", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            for report in self._aside.said():
                with self._changed:
                    self._report = report
                    self._changed.notify_all()
                if not self._running.is_running:
                    self._aside.ask_to_end()
        except ClonosError as error:
            if not self._is_adopted:
                self._error = error
        except Exception as error:  # noqa: BLE001 - who waits for it must hear of it
            self._error = AsideFailed(f"what it says cannot be read: {error!r}")
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            self._aside.close()

    # --- how it is doing ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it follows the job; false once it was stopped or has failed."""
        return not self._is_over

    @property
    def error(self) -> ClonosError | None:
        """Why it could not go on: changed code has raised, or has asked a question without an
        answer."""
        return self._error

    @property
    def report(self) -> Any:
        """The newest :class:`~clonos.branch.follow.Report`: ``steps``, ``behind``, ``differences``,
        ``bill``, ``calls``, ``cost``. None: there is none yet."""
        return self._report

    def compare(self, sink: str | None = None) -> Any:
        """The difference between what the job and the changed code have delivered so far.

        Parameters
        ----------
        sink
            Its name; may be left out if there is only one.

        Returns
        -------
        Comparison
            See :meth:`clonos.Branch.compare`. All differences are counted; its ``table``, and
            ``dataframe(spark)``, have the first thousand of each kind.
        """
        found = {} if self._report is None else self._report.differences
        if sink is None and len(found) == 1:
            (only,) = found.values()
            return only
        if sink not in found:
            raise CannotReplace(
                "nothing was compared yet" if not found else f"there is no sink {sink!r}",
                remedy=f"name one of {', '.join(found)}" if found else "wait: canary.catch_up()",
            )
        return found[sink]

    @property
    def changes(self) -> int:
        """How many rows differ so far."""
        found = {} if self._report is None else self._report.differences
        return sum(one.changes for one in found.values())

    def catch_up(self, timeout_s: float = 60.0) -> None:
        """Wait until it has taken all steps that the job's log has now, or has ended.

        Raises
        ------
        NotEnded
            It takes longer than that; also a `TimeoutError`.
        ClonosError
            It has failed.
        """
        goal = LOOKS + (0 if self._report is None else self._report.looks)
        self._wait(lambda: self._report is not None and self._report.looks >= goal, timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._is_over, timeout_s)
            if self._error is not None:
                raise self._error
            if not condition() and not self._is_over:  # at its end it has taken all there was
                how = "; ".join(self.look()[1]) or "it begins"
                raise NotEnded(
                    f"the canary has not caught up within {timeout_s:g} s, and goes on ({how})",
                    remedy="wait again: canary.catch_up(); or end it with canary.stop()",
                )

    def __str__(self) -> str:
        """How it is doing."""
        lines = [] if self._report is None else [str(self._report)]
        if self._error is not None:
            lines.append(f"it has failed: {self._error}")
        return "\n".join(lines) or "it begins"

    def look(self) -> tuple[bool, list[str]]:
        """Whether it runs, and how it is doing, without rows: for the job's page."""
        lines, report = [], self._report
        if report is not None:
            lines.append(f"{report.steps:,} steps followed, {report.behind:,} to follow")
            lines += [str(one).partition("\n")[0] for one in report.differences.values()]
        if self._error is not None:
            lines.insert(0, f"it has failed: {self._error.what}")
        return self.is_running, lines

    # --- its end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let it take the steps that the job has done by now, and end. Its comparisons stay."""
        self._aside.ask_to_end()
        self._thread.join(STOP_S)
        self._aside.close()

    def adopt(self, *, anyway: bool = False, within: str | timedelta = "30 seconds") -> None:
        """Put the changed code in place, as :meth:`clonos.RunningJob.adopt` does, and end.

        It catches up first. The job keeps its own state.

        Parameters
        ----------
        anyway
            Also if rows differ, as they should if, for example, a prompt was changed; or if the
            canary's process has died.
        within
            How long the job may take to settle.

        Raises
        ------
        CannotReplace
            It has failed, or rows differ: nothing was changed in the job, which goes on. Or it was
            adopted already.
        NotEnded
            It does not catch up; also a `TimeoutError`.
        CannotUpgrade, NotSettled
            See :meth:`clonos.RunningJob.upgrade`.
        """
        with self._adopting:
            self._adopt(anyway=anyway, within=within)

    def _adopt(self, *, anyway: bool, within: str | timedelta) -> None:
        if self._is_adopted:
            raise CannotReplace("it was adopted already", remedy="begin another canary")
        try:
            self.catch_up(CATCH_UP_S + LOOKS * self._every_s)
        except NotEnded:
            raise
        except ClonosError:  # see below
            pass
        if (error := self._error) is not None and not (anyway and isinstance(error, AsideFailed)):
            raise CannotReplace(
                f"the canary has failed: {error.what}",
                where=error.where,
                remedy="if the changed code is to blame, correct it; then begin another canary",
            ) from error
        if self.changes and not anyway:
            raise CannotReplace(
                f"with the changed code {self.changes} rows are different",
                remedy="look at canary.compare(sink); if that is what you want, adopt(anyway=True)",
            )
        self._running.adopt(self, within=within)
        self._is_adopted = True
        self.stop()
        self._error = None  # it may have found that the job has other code now
