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
from clonos.graph.compile import CompiledJob, TaskCode
from clonos.graph.description import names_of
from clonos.graph.early import EARLY
from clonos.upgrade.shape import Shape


def shape_before(
    description: Mapping[str, Any],
    compiled: CompiledJob,
    renamed: Mapping[str, str],
    drop_state: Collection[str] = (),
) -> Shape:
    """The shape of the job that `compiled` continues, with the operators' next names.

    Parameters
    ----------
    description
        Of the job before.
    renamed
        From an operator's name to the next one.

    Raises
    ------
    CannotUpgrade
        There is no such operator, or it cannot have another name.
    """
    before = Shape(description)
    known, homes = names_of(description), _homes(compiled)
    for name, becomes in renamed.items():
        _require_names(name, becomes, known, homes)
        if becomes in known and becomes not in renamed:
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
    for becomes, count in Counter(renamed.values()).items():
        if count > 1:
            raise CannotUpgrade(
                f"renamed= gives {count} operators this name", where=becomes, remedy="name one"
            )
    early = {f"{name}{EARLY}": f"{becomes}{EARLY}" for name, becomes in renamed.items()}
    parts = {n: now for n, now in early.items() if n in known and (now in homes or now in known)}
    return Shape(description, {**parts, **renamed})


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
