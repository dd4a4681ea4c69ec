"""Packages that only some jobs need, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from clonos.errors import DefinitionError


def imported(package: str, *, extra: str, where: str) -> Any:
    """A module of a package that comes with an extra of clonos's distribution.

    Parameters
    ----------
    package
        The module's name, such as ``"psycopg"``.
    extra
        Such as ``"postgres"``.
    where
        What needs it, for the error.

    Raises
    ------
    DefinitionError
        It is not installed.

    Examples
    --------
    >>> imported("no_such_package", extra="postgres", where="sinks.postgres")
    Traceback (most recent call last):
    ...
    clonos.errors.DefinitionError: sinks.postgres: the package no_such_package is not there. \
To do: pip install ".[postgres]" in a clone of clonos, for the driver and all executors
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise DefinitionError(
            f"the package {package} is not there",
            where=where,
            remedy=f'pip install ".[{extra}]" in a clone of clonos, '
            "for the driver and all executors",
        ) from error
