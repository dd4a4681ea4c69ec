"""The past of a job that runs, as far as its driver has it put aside or tried again."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

from clonos.cluster.aside import Aside
from clonos.cluster.setup import DriverSetup

BUNDLE: Final = "clonos.branch.witness:bundle"


class RunningPast:
    """What a running job does with its past. Other processes do it; the job is not disturbed."""

    _setup: DriverSetup

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
