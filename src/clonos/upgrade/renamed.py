"""Operators that have another name in the next graph: their state goes with them.

Only state has the name of an operator in it, and a few things outside of the job: the keys of
effects, the output of sinks, and the folders of rows that the checkpoint keeps. Those would be
taken for new ones under another name. So an operator keeps its name once there are such things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from clonos.errors import CannotUpgrade
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.graph.description import names_of
from clonos.graph.early import EARLY
from clonos.upgrade.names import Renamed, operators_in, states_in
from clonos.upgrade.shape import Shape
from clonos.upgrade.states import HAS_STATES


def shape_before(
    description: Mapping[str, Any],
    compiled: CompiledJob,
    renamed: Renamed,
    drop_state: Collection[Any] = (),
) -> Shape:
    """The shape of the job that `compiled` continues, with the operators' next names.

    Parameters
    ----------
    description
        Of the job before.
    renamed
        What has another name in `compiled`.

    Raises
    ------
    CannotUpgrade
        There is no such operator, or it cannot have another name.
    """
    before = Shape(description)
    known, homes = names_of(description), _homes(compiled)
    names = operators_in(renamed)
    for name, becomes in names.items():
        _require_names(name, becomes, known, homes)
        if becomes in known and becomes not in names:
            raise CannotUpgrade(
                f"renamed= says that {name!r} is {becomes!r} now, and the job had an operator of "
                "that name, too",
                remedy=f"say what {becomes!r} is now, too; or give the operator a name that the "
                "job did not have",
            )
        if name in drop_state:
            raise CannotUpgrade(
                "renamed= keeps its state, and drop_state= drops it", where=name, remedy="say one"
            )
        if name in before.sources and is_spooled(homes[becomes]):
            raise has_a_trace(name, "the rows that the checkpoint keeps of a source have its name")
    _require_one_each(names, "operators")
    for name, states in states_in(renamed).items():
        _require_states(name, states, before, drop_state)
    early = {f"{name}{EARLY}": f"{becomes}{EARLY}" for name, becomes in names.items()}
    parts = {n: now for n, now in early.items() if n in known and (now in homes or now in known)}
    return Shape(description, {**parts, **renamed})


def _require_one_each(names: Mapping[str, str], what: str) -> None:
    for becomes, count in Counter(names.values()).items():
        if count > 1:
            raise CannotUpgrade(
                f"renamed= gives {count} {what} this name", where=becomes, remedy="name one"
            )


def _require_states(
    name: str, states: Mapping[str, str], before: Shape, drop_state: Collection[Any]
) -> None:
    """Raise `CannotUpgrade` if an operator has no states that could have other names."""
    if name not in before.homes:
        raise CannotUpgrade(
            f"renamed= names a state of {name!r}, and the job had no operator of this name",
            remedy=f"it had {', '.join(before.had)}",
        )
    if before.operators[name][0] != HAS_STATES:
        raise CannotUpgrade(
            "renamed= names a state of it, and only process(...) has states with names",
            where=name,
            remedy="name an operator, or a state of a process",
        )
    if name in drop_state:
        raise CannotUpgrade(
            "renamed= keeps a state of it, and drop_state= drops all", where=name, remedy="say one"
        )
    _require_one_each(states, "states")


def is_spooled(code: TaskCode) -> bool:
    """Whether a source's rows are spooled in the checkpoint, under its name."""
    source = code.source
    return source is not None and (source.is_fed or source.kind == "materialized")


def _homes(compiled: CompiledJob) -> dict[str, TaskCode]:
    """By operator, one of its tasks."""
    return {name: code for code in compiled.codes for name, _ in code.operators}


def _require_names(name: str, becomes: str, known: Collection[str], homes: Collection[str]) -> None:
    if name not in known:
        raise CannotUpgrade(
            f"renamed= names {name!r}, and the job had no operator of this name",
            remedy=f"it had {', '.join(known)}",
        )
    if becomes not in homes:
        raise CannotUpgrade(
            f"renamed= says that {name!r} is {becomes!r} now, and there is no such operator",
            remedy=f"there are {', '.join(homes)}",
        )


def has_a_trace(name: str, what: str) -> CannotUpgrade:
    """The error for an operator that something outside of the job knows by its name."""
    return CannotUpgrade(what, where=name, remedy="leave the name as it was")
