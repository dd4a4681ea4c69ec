"""What the driver of a job has another process do: it makes bundles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from clonos.branch.bundling import Bundled, BundleTooLarge, Wanted, make
from clonos.graph.compile import CompiledJob


def bundle(
    compiled: CompiledJob,
    checkpoint_dir: str,
    journal: str | None,
    out: str,
    **wanted: Any,
) -> Iterator[Bundled]:
    """See :meth:`clonos.RunningJob.bundle`."""
    yield _told(make(compiled, out, checkpoint_dir, journal, Wanted(**wanted)))


def write(
    compiled: CompiledJob,
    checkpoint_dir: str,
    journal: str | None,
    out: str,
    task: str | None,
    **wanted: Any,
) -> Iterator[Bundled]:
    """A bundle of a job that has failed; if that were too large, of the task that could not go on.

    Raises
    ------
    BundleTooLarge
        That, too, is too large.
    """
    how = Wanted(**wanted, replaces=True, tries=True)
    try:
        made = make(compiled, out, checkpoint_dir, journal, how)
    except BundleTooLarge:
        if task is None:
            raise
        made = make(compiled, out, checkpoint_dir, journal, replace(how, task=task))
    yield _told(made)


def _told(made: Bundled) -> Bundled:
    """As it is sent: without the user's own exception, whose class may not be there."""
    if made.error is not None:
        made.error.__cause__ = made.error.__context__ = None
    return made
