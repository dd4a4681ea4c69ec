"""What users name on a command line, such as ``my_package.fraud:job``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from clonos.blame import in_short, users_traceback
from clonos.errors import DefinitionError

REMEDY: Final = "give MODULE:NAME, such as my_package.fraud:job"


class NotFound(DefinitionError):
    """Nothing has this name, or it is something else."""


def named(name: str, default: str = "") -> Any:
    """What a name means; modules of the working directory are found, too.

    Raises
    ------
    NotFound
        There is no such thing, or its module cannot be imported.

    Examples
    --------
    >>> named("math:sqrt")(4)
    2.0
    >>> named("fraud.py:job")
    Traceback (most recent call last):
    ...
    clonos.named.NotFound: 'fraud.py' is not the name of a module. To do: give MODULE:NAME, such \
as my_package.fraud:job
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not module or module.endswith(".py") or "/" in module:
        raise NotFound(f"{module!r} is not the name of a module", remedy=REMEDY)
    try:
        return getattr(import_module(module), attribute or default)
    except Exception as error:  # noqa: BLE001 - user code
        what = f"there is no {name!r}: {in_short(error)}"
        raise NotFound(what, remedy=REMEDY, trace=users_traceback(error)) from None


def named_job(name: str) -> Any:
    """A ``clonos.Job``, or one that a function without parameters returns; by default ``job``.

    Raises
    ------
    NotFound
        It is not a job, or the function raised.
    """
    found = named(name, "job")
    try:
        job = found() if callable(found) else found
    except Exception as error:  # noqa: BLE001 - user code
        what = f"there is no job {name!r}: {in_short(error)}"
        raise NotFound(what, remedy=REMEDY, trace=users_traceback(error)) from None
    if not hasattr(job, "compile"):
        what = f"{name!r} is a {type(job).__name__}, not a job"
        raise NotFound(
            what, remedy="name a clonos.Job, or a function without parameters that returns one"
        )
    return job
