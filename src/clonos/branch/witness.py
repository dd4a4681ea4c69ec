"""Work that the driver gives to another process: making bundles and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from clonos.blame import users_traceback
from clonos.branch import Branch
from clonos.branch.bundling import Bundled, Wanted, make
from clonos.errors import BundleTooLarge, ClonosError, OperatorError
from clonos.graph.compile import CompiledJob
from clonos.replay.kept import At
from clonos.replay.past import read


def branch(
    _: Callable[[float], bool],
    compiled: CompiledJob,
    checkpoint_dir: str,
    journal: str | None,
    at: At,
    changes: Mapping[str, Any] | CompiledJob,
    **how: Any,
) -> Iterator[Branch]:
    """See :meth:`clonos.RunningJob.branch`."""
    with with_trace():
        made = Branch(read(compiled, checkpoint_dir, journal, at), changes, **how)
    made.replaces = {}  # the caller has them
    _without_causes(made.error, made.failed)
    yield made


def bundle(
    _: Callable[[float], bool],
    compiled: CompiledJob,
    checkpoint_dir: str,
    journal: str | None,
    out: str,
    **wanted: Any,
) -> Iterator[Bundled]:
    """See :meth:`clonos.RunningJob.bundle`."""
    made = make(compiled, out, checkpoint_dir, journal, Wanted(**wanted))
    _without_causes(made.error)
    yield made


def write(
    _: Callable[[float], bool],
    compiled: CompiledJob,
    checkpoint_dir: str,
    journal: str | None,
    out: str,
    task: str | None,
    **wanted: Any,
) -> Iterator[Bundled]:
    """Bundle a failed job; if that is too large, only the task that failed.

    Raises
    ------
    BundleTooLarge
        The bundle of the task is too large, too.
    """
    how = Wanted(**wanted, replaces=True, tries=True)
    try:
        made = make(compiled, out, checkpoint_dir, journal, how)
    except BundleTooLarge:
        if task is None:
            raise
        made = make(compiled, out, checkpoint_dir, journal, replace(how, task=task))
    _without_causes(made.error)
    yield made


@contextmanager
def with_trace() -> Iterator[None]:
    """Give errors of user code their traceback as text, because the exception is not pickled."""
    try:
        yield
    except OperatorError as error:
        if error.__cause__ is not None and not error.trace:
            error.trace = users_traceback(error.__cause__)
        raise


def _without_causes(*errors: ClonosError | None) -> None:
    """Remove the user's own exceptions, whose classes may be unknown to the receiver."""
    for error in errors:
        if error is not None:
            error.__cause__ = error.__context__ = None
