"""What sources of the next graph read: more, or less if the user says so, but nothing else.

A source's position is one in each topic (stream, query) that it reads, by name. One that is new to
it begins at its starting point, which needs no state. One that is gone takes its position with it,
so ``drop_state=`` must name it, as it must an operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from clonos.errors import CannotUpgrade
from clonos.graph.code import TaskCode
from clonos.upgrade.renamed import is_spooled
from clonos.upgrade.shape import Shape


def parts_in(dropped: Collection[Any]) -> dict[str, set[str]]:
    """What sources are to forget, by their names, among what ``drop_state=`` names.

    Examples
    --------
    >>> parts_in(["totals", ("clicks", "old_clicks")])
    {'clicks': {'old_clicks'}}
    """
    found = dict[str, set[str]]()
    for name in dropped:
        if not isinstance(name, str):
            found.setdefault(name[0], set()).add(name[1])
    return found


def require_readable(before: Shape, now: Mapping[str, TaskCode], dropped: Collection[Any]) -> None:
    """Raise `CannotUpgrade` if a source would have a position in what it does not read, or would
    lose one of which ``drop_state=`` says nothing.

    Parameters
    ----------
    now
        By source of the next graph, one of its tasks.
    """
    parts = parts_in(dropped)
    for name, gone in parts.items():
        known = before.reads.get(name) or []
        if wrong := sorted(gone - set(known)):
            raise CannotUpgrade(
                f"drop_state says that {name!r} is to forget {_listed(wrong)}, and it did not read "
                "that",
                remedy=f"it read {_listed(known)}" if known else "name a source and what it read",
            )
        still = set(_source(now[name]).reads) & gone if name in now else set()
        if still:
            raise CannotUpgrade(
                f"drop_state says that {name!r} is to forget {_listed(sorted(still))}, and it "
                "still reads that",
                remedy="say one",
            )
    for name, code in now.items():
        was, becomes = before.reads.get(name), _source(code).reads
        is_same_kind = before.sources.get(name, [None])[0] == _source(code).kind
        if was is None or name in dropped or not is_same_kind:
            continue
        gone = set(was) - set(becomes)
        if gone and _source(code).forget is None:
            raise _has_one_position(name, was, code)
        if lost := sorted(gone - parts.get(name, set())):
            pairs = ", ".join(f"({name!r}, {one!r})" for one in lost)
            raise CannotUpgrade(
                f"the source read {_listed(was)}, and is to read {_listed(becomes)}: its position "
                f"in {_listed(lost)} would be lost",
                where=name,
                remedy=f"if that may be, add drop_state=[{pairs}]; or give the source another "
                "name, if it is another one",
            )


def _source(code: TaskCode) -> Any:
    assert code.source is not None
    return code.source


def _has_one_position(name: str, was: Collection[str], code: TaskCode) -> CannotUpgrade:
    remedy = f"add drop_state=[{name!r}]: then it begins at its start=, under any name"
    if is_spooled(code):  # and the broker has a session with what was subscribed to
        remedy = f"give it another name and another client_id, and add drop_state=[{name!r}]"
    return CannotUpgrade(
        f"the source read {_listed(was)}, and is to read {_listed(_source(code).reads)}: its "
        "position means nothing there",
        where=name,
        remedy=remedy,
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
