"""The bundle that the driver writes when a job has failed."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from clonos.cluster.aside import Aside
from clonos.cluster.directory import JobDirectory
from clonos.core.housekeeper import HouseKeeper
from clonos.errors import ClonosError, PoisonRecord
from clonos.graph.compile import CompiledJob
from clonos.storage.files import own_folder

BUNDLES_MAX: Final = 8
"""How many bundles of a job are kept; the oldest goes first."""
WRITE_S: Final = 60.0
"""Time to write a bundle. The error does not wait for it any longer."""
MAKE: Final = "clonos.branch.witness:write"


def bear_witness(
    compiled: CompiledJob,
    directory: JobDirectory,
    journal: Any,
    keeper: HouseKeeper,
    error: ClonosError,
    task: int,
) -> Path:
    """Put what led to an error into a bundle; return its path.

    Parameters
    ----------
    compiled
        The job, with sources that can be read by another process.
    journal
        The journal as it was given to the job.
    keeper
        Knows which steps have failed.
    task
        The task that could not go on; -1: unknown.

    Raises
    ------
    ClonosError
        The bundle could not be written.
    """
    known = min(keeper.failed, default=-1) if task < 0 else task
    where = error.where or compiled.name
    if known >= 0:
        where, position = compiled.plan.tasks[known].name, keeper.failed.get(known, (0,))[0]
        where = f"{where} step {position or keeper.length(known)}"
    folder = folder_of(directory, compiled.name)
    out = folder / f"{_plain(where)}.clonos"
    kills = error.what if isinstance(error, PoisonRecord) else ""
    request = {
        "compiled": compiled,
        "out": str(out),
        "checkpoint_dir": compiled.options.checkpoint_dir or directory.root,
        "journal": journal,
        "task": compiled.plan.tasks[known].name if known >= 0 else None,
        "kills": kills,
        "redact": compiled.options.bundle_redact,
        "nbytes": compiled.options.bundle_bytes,
    }
    try:
        # The job is over, and its error waits for this.
        Aside(MAKE, request, directory.hash_seed, priority=0).result(WRITE_S)
    finally:
        _make_room(folder)
    return out


def folder_of(directory: JobDirectory, name: str) -> Path:
    """The folder of a job's bundles: beside its journal, or else among this user's temporary files.

    Raises
    ------
    UnusableStore
        The folder of this user belongs to another one.
    """
    local = directory.local_folder
    if local is not None:
        folder = local / "bundles"
    else:
        remedy = "set TMPDIR to a folder that is only yours"
        folder = own_folder("bundles", remedy) / "bundles" / _plain(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _plain(name: str) -> str:
    """A name that needs no quotes in a shell.

    Examples
    --------
    >>> _plain("total[0] step 17")
    'total-0-step-17'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.")


def _make_room(folder: Path) -> None:
    with suppress(OSError):
        for left in folder.glob(".*.part"):  # of a process that was killed
            left.unlink()
        oldest_first = sorted(folder.glob("*.clonos"), key=lambda path: path.stat().st_mtime)
        for path in oldest_first[:-BUNDLES_MAX]:
            path.unlink()
