"""Finds what cannot be pickled, and so not be sent to slots, and calls it by its name in the
code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from pyspark import cloudpickle  # as Spark ships functions

from clonos.columns.rows import describe
from clonos.errors import NotPicklable
from clonos.graph.compile import CompiledJob

_dumps: Callable[[Any], bytes] = cloudpickle.dumps
_DEPTH: Final = 8
"""How deep the search goes from an operator to a value that cannot be sent."""


class _Found(NamedTuple):
    """What cannot be pickled: its name, and the innermost function that holds it."""

    value: Any
    name: str = ""
    holder: FunctionType | None = None


def require_picklable(compiled: CompiledJob) -> None:
    """Raise `NotPicklable` for the first operator or sink that cannot be sent to slots.

    Spark would find out, too, but names neither the operator nor the variable.
    """
    seen: set[int] = set()
    for where, part in _parts(compiled):
        if id(part) not in seen and (error := _refusal(part)) is not None:
            found = _culprit(_Found(part), _DEPTH)
            raise NotPicklable(_told(found, error), where=where, remedy=_remedy(found.value))
        seen.add(id(part))  # tasks of an operator share its part


def _parts(compiled: CompiledJob) -> Iterator[tuple[str, Any]]:
    for code in compiled.codes:
        yield from code.operators
        if code.sink is not None:
            yield code.operators[-1][0], code.sink


def _refusal(value: Any) -> Exception | None:
    try:
        _dumps(value)
    except Exception as error:  # noqa: BLE001 - users' objects may raise anything
        return error
    return None


def _culprit(found: _Found, depth: int) -> _Found:
    """The innermost value, reached by names, that cannot be pickled."""
    if depth and not _is_sparks(found.value):
        for held in _held(found):
            if _refusal(held.value) is not None:
                return _culprit(held, depth - 1)
    return found


def _held(found: _Found) -> Iterator[_Found]:
    value, name, holder = found
    if isinstance(value, FunctionType):
        for variable, content in _variables(value):
            yield _Found(content, repr(variable), value)
    elif isinstance(value, MethodType):
        yield from (_Found(value.__self__, name, holder), _Found(value.__func__, name, holder))
    elif isinstance(value, partial):
        arguments = (value.func, *value.args, *value.keywords.values())
        yield from (_Found(each, name, holder) for each in arguments)
    elif isinstance(value, Mapping):
        yield from (_Found(each, f"{name}[{key!r}]", holder) for key, each in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (_Found(each, name, holder) for each in value)
    elif isinstance(value, type):
        methods = (each for each in vars(value).values() if isinstance(each, FunctionType))
        yield from (_Found(method, method.__qualname__, holder) for method in methods)
    else:
        for attribute, content in _state(value).items():
            yield _Found(content, f"{type(value).__name__}.{attribute}", holder)
        yield _Found(type(value), name, holder)


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The outer variables and defaults of a function, by name."""
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            yield variable, cell.cell_contents
        except ValueError:  # it is not assigned yet
            continue
    for variable in _names(function.__code__):
        if variable in function.__globals__:
            yield variable, function.__globals__[variable]
    yield from ((name, each) for name, each in (function.__kwdefaults__ or {}).items())
    yield from (("a default", each) for each in function.__defaults__ or ())


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _state(value: Any) -> dict[str, Any]:
    """The attributes that would be pickled."""
    try:
        state = value.__getstate__() if hasattr(value, "__getstate__") else vars(value)
    except Exception:  # noqa: BLE001 - then the value itself refuses
        return {}
    return state if isinstance(state, dict) else {}


def _is_sparks(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in {"pyspark", "py4j"}


def _told(found: _Found, error: Exception) -> str:
    if not found.name:
        return f"it cannot be sent to the slots: {describe(error)}"
    what = f"{found.name} ({type(found.value).__name__}) cannot be sent to the slots"
    if found.holder is None:
        return what
    code = found.holder.__code__
    return (
        f"{what}; {code.co_name} uses it ({PurePath(code.co_filename).name}:{code.co_firstlineno})"
    )


def _remedy(value: Any) -> str:
    if _is_sparks(value):
        return (
            "Spark's own objects exist only in the driver: give the function plain values, or use "
            "look_up(dataframe, on=...)"
        )
    return (
        "make it where it is used: in open() of a Process or a Service, or in the function when "
        "it is first called"
    )
