"""What users give on a command line: names such as ``my_package.fraud:job``, and numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from clonos.blame import in_short, users_traceback
from clonos.errors import ClonosError, NotFound

REMEDY: Final = "give MODULE:NAME, such as my_package.fraud:job"


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
    clonos.errors.NotFound: 'fraud.py' is not the name of a module. To do: give MODULE:NAME, such \
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
        said, remedy = in_short(error), "correct the function"
        if isinstance(error, ClonosError):
            said, remedy = f"{type(error).__name__}: {error.what}", error.remedy
        what = f"{name!r} has raised {said}"
        raise NotFound(what, remedy=remedy, trace=users_traceback(error)) from None
    if not hasattr(job, "compile"):
        what = f"{name!r} is not a job, but of type {type(job).__name__}"
        raise NotFound(
            what, remedy="name a clonos.Job, or a function without parameters that returns one"
        )
    return job


def whole(low: int) -> Callable[[str], int]:
    """A type for ``argparse``: a whole number of at least `low`.

    Examples
    --------
    >>> whole(1)("3")
    3
    """

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return number

    return parse


def positive(text: str) -> float:
    """A type for ``argparse``: a number above 0.

    Examples
    --------
    >>> positive("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
