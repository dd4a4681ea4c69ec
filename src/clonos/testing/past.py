"""A past as a test: runs the functions that a job has now on what happened then.

A bundle (:func:`clonos.bundle`) has the rows, their order, the clock readings and the answers of
services. So an error at night becomes a test in the morning, and stays one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from clonos.blame import users_traceback
from clonos.branch import Branch
from clonos.branch.compare import Comparison
from clonos.errors import ClonosError, NothingToReplay, OperatorError
from clonos.nodes.versions import HASH_SEED
from clonos.replay.past import read


class PastRun:
    """The result of a job's present functions on a past; made by :func:`run_past`.

    Attributes
    ----------
    error
        The error of a function, if one has raised; its own exception is the ``__cause__``.
    error_then
        The error that the job's functions raised then.
    """

    def __init__(
        self,
        job: Any,
        bundle: str | Path,
        *,
        stand_in: Callable[..., Any] | None = None,
        replace: dict[str, Any] | None = None,
    ) -> None:
        if not Path(bundle).is_file():
            raise NothingToReplay(
                "there is no such file", where=str(bundle), remedy="make it with clonos bundle"
            )
        past = read(job.compile(), str(bundle), None)
        self._seed = past.hash_seed
        self._branch = Branch(past, replace or {}, stand_in=stand_in, keeps_errors=True)
        self.error, self.error_then = self._branch.failed, self._branch.error

    def rows(self, sink: str | None = None) -> pa.Table:
        """The rows that a sink gets now; its name may be omitted if it is the only one."""
        return self._branch.rows(sink)

    def rows_then(self, sink: str | None = None) -> pa.Table:
        """The rows that the sink got then."""
        return self._branch.job_rows(sink)

    def compare(self, sink: str | None = None, keys: Sequence[str] | None = None) -> Comparison:
        """The difference: ``a`` is then, ``b`` is now. See :meth:`clonos.Branch.compare`."""
        return self._branch.compare(sink, keys)

    def expect_error(self, kind: type[BaseException] = Exception, match: str = "") -> BaseException:
        """Check that a function raises.

        Parameters
        ----------
        kind
            The class of the function's own exception.
        match
            A regular expression to search for in its text.

        Returns
        -------
        BaseException
            The function's own exception.

        Raises
        ------
        AssertionError
            No function raises, or one raises something else.
        """
        if self.error is None:
            raise AssertionError("no function raised; all that had happened was done again")
        cause = self.error.__cause__ or self.error
        if not isinstance(cause, kind) or re.search(match, str(cause)) is None:
            wanted = f"{kind.__name__}({match!r})" if match else kind.__name__
            raise AssertionError(f"{wanted} was expected, and not {_shown(self.error)}") from cause
        return cause

    def expect_no_error(self) -> None:
        """Check that no function raises.

        Raises
        ------
        AssertionError
            A function raises; its own lines come first in the message.
        """
        if self.error is not None:
            raise AssertionError(_shown(self.error)) from self.error.__cause__

    def expect_same_output(
        self, sink: str | None = None, keys: Sequence[str] | None = None
    ) -> None:
        """Check that the sinks get the same rows as then.

        If the job had failed, it delivered nothing after the row that failed; rows that come there
        now are not compared.

        Parameters
        ----------
        sink
            Only this sink.
        keys
            Columns by which rows of now are matched with rows of then.

        Raises
        ------
        AssertionError
            The rows differ; the message shows them.
        """
        self.expect_no_error()
        sinks = self._branch.sinks if sink is None else (sink,)
        found = [self.compare(name, keys) for name in sinks]
        changed = ("only_a", "changed") if self.error_then is not None else ()
        bad = [one for one in found if (sum(map(one.count, changed)) if changed else one.changes)]
        if bad:
            here = os.environ.get(HASH_SEED, "random")
            seed = f"\nif that depends on the order of sets: {HASH_SEED}={self._seed}"
            is_other = self._seed and here != self._seed
            told = "\n".join(map(str, bad))
            raise AssertionError(
                f"other rows than then (a: then, b: now)\n{told}{seed if is_other else ''}"
            )


def run_past(
    job: Any,
    bundle: str | Path,
    *,
    stand_in: Callable[..., Any] | None = None,
    replace: dict[str, Any] | None = None,
) -> PastRun:
    """Run a job's functions on the past in a bundle.

    No sink is written, no service is called and no effect is made. A question that the job asked
    then gets the same answer.

    Parameters
    ----------
    job
        A :class:`clonos.Job` with the same tasks and channels; its functions, and the places of its
        sources and sinks, may differ.
    bundle
        The file; see :func:`clonos.bundle`.
    stand_in
        ``stand_in(fn, *args)`` answers questions that are new.
    replace
        Functions to use in place of the job's, by operator name.

    Raises
    ------
    NothingToReplay, UnreadableBundle
        The file does not exist or cannot be read.
    OtherJob
        The bundle belongs to a job with another graph.
    Unanswered
        A function asks a new question, and there is no stand-in.

    Examples
    --------
    >>> past = run_past(fraud.job, "pasts/limit.clonos")  # doctest: +SKIP
    >>> past.expect_no_error()  # doctest: +SKIP
    >>> past.expect_same_output("alerts", keys=["id"])  # doctest: +SKIP
    """
    made = job() if callable(job) and not hasattr(job, "compile") else job
    return PastRun(made, bundle, stand_in=stand_in, replace=replace)


def _shown(error: ClonosError) -> str:
    cause = error.__cause__
    trace = users_traceback(cause) if isinstance(error, OperatorError) and cause else ""
    return f"{trace}\n{error}" if trace else str(error)
