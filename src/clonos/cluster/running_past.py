"""The past of a job that runs, as far as its driver has it put aside or tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from clonos.cluster.aside import Aside
from clonos.cluster.canary import FOLLOW, Canary
from clonos.cluster.errors import NothingKept
from clonos.cluster.setup import DriverSetup
from clonos.columns.durations import parse_duration
from clonos.graph.changed import changed

BUNDLE: Final = "clonos.branch.witness:bundle"


class RunningPast:
    """What a running job does with its past. Other processes do it; the job is not disturbed."""

    _setup: DriverSetup

    @property
    def is_running(self) -> bool:
        """Whether the job runs."""
        raise NotImplementedError

    def adopt(self, branch: Any, *, within: str | timedelta = "30 seconds") -> None:
        """Go on with what a branch, or a canary, has tried."""
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

        It begins with the state of the newest point of the job's history, and takes every step that
        the job takes from there, with the same rows, order, time and answers, in a process of its
        own. What both deliver is compared. Nothing in the job is changed: no sink is opened, no
        effect is made, and the job does not wait.

        Parameters
        ----------
        replace
            As for :meth:`clonos.Job.branch`: a dict from operators' names to functions, or a whole
            job with the same tasks and channels.
        keys
            By sink, the columns that say which row belongs to which. By default rows match only if
            they are equal in all columns.
        every
            How often it looks what has come.
        how
            ``calls``, ``stand_in``, ``ask``, ``reuse``, ``cost``: who answers what the job has not
            asked, as for :meth:`clonos.Job.branch`.

        Returns
        -------
        Canary
            With ``compare``, ``report``, ``adopt`` and ``stop``; print it.

        Raises
        ------
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
        setup = self._setup
        past = setup.past()
        if setup.compiled.options.keep is None:
            raise NothingKept(
                "this job keeps no history, so its log cannot be followed",
                where=setup.compiled.name,
                remedy='clonos.Job(history="1 hour") keeps it',
            )
        changes = replace if isinstance(replace, Mapping) else replace.compile()
        changed(setup.compiled, changes)  # what does not fit is said here
        request = {
            **past,
            "replace": changes,
            "keys": dict(keys or {}),
            "every_s": parse_duration(every) / 1000,
            **how,
        }
        return Canary(self, Aside(FOLLOW, request, setup.directory.hash_seed), replace)

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
            What is in it; print it.

        Raises
        ------
        NothingToReplay
            There is no log, or nothing that lasts: the job has no ``checkpoint_dir``.
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
