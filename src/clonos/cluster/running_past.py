"""The past of a running job: canaries, branches and bundles that its driver starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from clonos.cluster.aside import Aside
from clonos.cluster.canary import FOLLOW, Canary
from clonos.cluster.setup import DriverSetup
from clonos.columns.durations import parse_duration
from clonos.errors import NothingKept
from clonos.graph.changed import changed
from clonos.options import require_known

BUNDLE: Final = "clonos.branch.witness:bundle"
BRANCH: Final = "clonos.branch.witness:branch"
ANSWERS: Final = ("calls", "stand_in", "ask", "reuse", "cost", "in_flight")
"""Options of both that the other process takes: how questions are answered."""


class RunningPast:
    """What a running job offers to do with its past. Other processes do it, so the job is not
    disturbed."""

    _setup: DriverSetup

    @property
    def is_running(self) -> bool:
        """Whether the job runs."""
        raise NotImplementedError

    def adopt(self, branch: Any, *, within: str | timedelta = "30 seconds") -> None:
        """Go on with the code that a branch, or a canary, has tried."""
        raise NotImplementedError

    def canary(
        self,
        replace: Any,
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        every: str | timedelta = "1 second",
        **how: Any,
    ) -> Canary:
        """Have changed code follow this job, on the same rows, before it is put in place.

        In its own process, it begins with the state of the newest point of the job's history and
        takes every step that the job takes from there, with the same rows, order, time and answers.
        The output of both is compared. Nothing in the job changes: no sink is opened, no effect is
        made, and the job does not wait.

        Parameters
        ----------
        replace
            As for :meth:`clonos.Job.branch`: a dict from operators' names to functions, or a whole
            job with the same tasks and channels.
        keys
            By sink, the columns that identify a row. By default rows match only if they are equal
            in all columns.
        every
            How often it looks for new steps.
        how
            ``calls``, ``stand_in``, ``ask``, ``reuse``, ``cost``, ``in_flight``: how questions are
            answered that the job has not asked, as for :meth:`clonos.Job.branch`.

        Returns
        -------
        Canary
            With ``compare``, ``report``, ``adopt`` and ``stop``; print it.

        Raises
        ------
        WrongType
            There is no such option.
        NothingKept
            The job keeps no history.
        CannotReplace
            The changed code does not fit.

        Examples
        --------
        >>> canary = running.canary({"score": new_score}, keys={"alerts": ["id"]})  # doctest: +SKIP
        >>> canary.catch_up()  # doctest: +SKIP
        >>> print(canary)  # doctest: +SKIP
        8120 steps followed, 64 to follow
        alerts: 312 changed, 0 only_a, 3 only_b; 10000 rows of the job, 10003 of the branch
        >>> canary.adopt(anyway=True)  # doctest: +SKIP
        """
        require_known(how, ("replace", "keys", "every", *ANSWERS), "running.canary")
        request = {
            **self._history("its log cannot be followed"),
            "replace": self._changes(replace),
            "keys": dict(keys or {}),
            "every_s": parse_duration(every) / 1000,
            **how,
        }
        aside = Aside(FOLLOW, request, self._setup.directory.hash_seed)
        canary = Canary(self, aside, replace, request["every_s"])
        self._setup.trials.add("canary", replace, canary.look)
        return canary

    def branch(
        self,
        *,
        at: int | str | datetime,
        until: int | str | datetime | None = None,
        replace: Any,
        timeout_s: float = 3600.0,
        **how: Any,
    ) -> Any:
        """Run changed code on the past of this job, in another process, while the job goes on.

        It does what :meth:`clonos.Job.branch` does, but takes no memory or time of the driver, and
        sets have the same order as in the slots.

        Parameters
        ----------
        at, until, replace, how
            See :meth:`clonos.Job.branch`.
        timeout_s
            How long it may take.

        Returns
        -------
        Branch
            To be passed to :meth:`adopt`.

        Raises
        ------
        WrongType
            There is no such option.
        NothingKept
            The job keeps no history.
        CannotReplace
            The changed code does not fit.
        ClonosError
            See :meth:`clonos.Job.branch`; ``AsideFailed`` if it takes too long.

        Examples
        --------
        >>> branch = running.branch(at="08:00", replace={"judge": careful})  # doctest: +SKIP
        >>> print(branch.compare("alerts", keys=["id"]))  # doctest: +SKIP
        alerts: 312 changed, 0 only_a, 3 only_b; 10000 rows of the job, 10003 of the branch
        >>> running.adopt(branch)  # doctest: +SKIP
        """
        known = ("at", "until", "replace", "timeout_s", *ANSWERS, "keeps_errors")
        require_known(how, known, "running.branch")
        request = {
            **self._history("there is no past to branch from"),
            "at": at,
            "until": until,
            "changes": self._changes(replace),
            **how,
        }
        told: list[str] | None = None
        self._setup.trials.add("branch", replace, lambda: (told is None, told or []))
        try:
            found = Aside(BRANCH, request, self._setup.directory.hash_seed).result(timeout_s)
            told = str(found).splitlines()
        except BaseException as error:
            told = [f"it has failed: {type(error).__name__}"]
            raise
        found.replaces = replace
        return found

    def _history(self, so: str) -> dict[str, Any]:
        """Where another process finds the history."""
        past, compiled = self._setup.past(), self._setup.compiled
        if compiled.options.keep is None:
            raise NothingKept(
                f"this job keeps no history, so {so}",
                where=compiled.name,
                remedy='clonos.Job(history="1 hour") keeps it',
            )
        return past

    def _changes(self, replace: Any) -> Any:
        """The changes, for another process. Raises if they do not fit."""
        changes = replace if isinstance(replace, Mapping) else replace.compile()
        changed(self._setup.compiled, changes)
        return changes

    def bundle(
        self,
        out: str | Path,
        *,
        at: int | str | datetime | None = None,
        until: int | str | datetime | None = None,
        task: str | None = None,
        redact: Any = None,
        timeout_s: float = 600.0,
    ) -> Any:
        """Put the past of this job, or of one task, into a file; the job goes on meanwhile.

        Parameters
        ----------
        out, at, until, task, redact
            See :func:`clonos.bundle`.
        timeout_s
            How long it may take.

        Returns
        -------
        Bundled
            Its contents; print it.

        Raises
        ------
        NothingToReplay
            There is no log, or no ``checkpoint_dir``.
        ClonosError
            See :func:`clonos.bundle`.

        Examples
        --------
        >>> print(running.bundle("judge.clonos", task="judge[2]", at="14:03"))  # doctest: +SKIP
        judge.clonos: 8,204 bytes, 19 steps of judge[2]
        """
        request = {
            **self._setup.past(),
            "out": str(Path(out).absolute()),
            "at": at,
            "until": until,
            "task": task,
            "redact": redact,
        }
        return Aside(BUNDLE, request, self._setup.directory.hash_seed).result(timeout_s)
