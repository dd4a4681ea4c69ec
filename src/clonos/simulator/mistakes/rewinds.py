"""Deliberate mistakes in rewinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Kind
from clonos.errors import CannotRewind, SourceError
from clonos.operators.calls import map_async as calls_module
from clonos.replay import reread as reread_module
from clonos.simulator.mistakes.mutation import REWIND, Mutation, mutation
from clonos.simulator.runs import rewinds as runs
from clonos.upgrade import rewind as rewind_module
from clonos.upgrade import section as section_module
from clonos.upgrade.rewind import Rewind


def lanes_of_the_point(original: Any) -> Any:
    """Outputs are numbered on from the point."""

    def discarded(position: int, lanes: Any) -> Any:
        return original(position, dict.fromkeys(lanes, (0, 0)))

    return discarded


def positions_of_the_point(original: Any) -> Any:
    """Logs begin anew."""

    def discarded(position: int, lanes: Any) -> Any:
        del position
        return original(1, lanes)

    return discarded


def without_the_past(original: Any) -> Any:
    """Earlier points are forgotten."""

    def succeed(
        self: HouseKeeper, before: HouseKeeper, first: Any, *, keeps_history: bool = False
    ) -> None:
        original(self, before, first, keeps_history=keeps_history)
        self.history = type(before.history)(before.history.keep)

    return succeed


def without_what_waits(original: Any) -> Any:
    """Output that is only in the journal is deleted with it."""

    def make(self: Rewind, term: int, announce: Any, journal: Any, records: Any, *rest: Any) -> Any:
        del records
        return original(self, term, announce, journal, [], *rest)

    return make


def at_the_newest(original: Any) -> Any:
    """State is the newest, not that of the point."""

    def init(self: Rewind, keeper: Any, compiled: Any, point: Any, *rest: Any) -> None:
        original(self, keeper, compiled, replace(point, layers=keeper.layers), *rest)

    return init


def alone(original: Any) -> Any:
    """Tasks that received something from the section stay."""
    del original
    return lambda _, tasks: frozenset(tasks)


def sent_in_vain(original: Any) -> Any:
    """The first item sent since the point is not sent again."""

    def sent(*given: Any) -> Any:
        found = original(*given)
        batches = {c: [i for i in items if i.kind is Kind.BATCH] for c, items in found.items()}
        return {c: [i for i in items if i not in batches[c][:1]] for c, items in found.items()}

    return sent


def all_at_the_point(original: Any) -> Any:
    """Tasks outside the section go back, too."""

    def layer(self: Rewind, task: int) -> Any:
        section, self.section = self.section, frozenset([task])
        try:
            return original(self, task)
        finally:
            self.section = section

    return layer


def nothing_was_made(original: Any) -> Any:
    """No effect counts as made in the past that the job has left."""
    del original

    def may_be_made(number: int, rewound: Any) -> bool:
        del number, rewound
        return False

    return may_be_made


def nobody_looks(original: Any) -> Any:
    """Nobody checks whether sources still have the rows."""
    del original

    def read(code: Any, floor: Any, cuts: Any) -> int:
        del code, floor
        return sum(cut.rows for cut in cuts)

    return read


def only_counted(original: Any) -> Any:
    """Rows are read again, and not compared."""

    def read(code: Any, floor: Any, cuts: Any) -> int:
        try:
            rows: int = original(code, floor, cuts)
        except CannotRewind as error:
            if "other rows" not in error.what:
                raise
            rows = sum(cut.rows for cut in cuts)
        return rows

    return read


def from_the_beginning(original: Any) -> Any:
    """Sources are asked for rows from before the point, too."""

    def read(code: Any, floor: Any, cuts: Any) -> int:
        rows: int = original(code, floor, cuts)
        try:
            code.source.reader(code.task.index, code.parallelism).open(0)
        except SourceError as error:
            raise CannotRewind(error.what) from error
        return rows

    return read


WRONG_REWINDS: dict[str, Mutation] = {
    "who goes back makes effects again unasked": mutation(
        "effects", (calls_module, "may_be_made", nothing_was_made), kind=REWIND
    ),
    "who goes back counts outputs as the point did": mutation(
        "rewind", (rewind_module, "Discarded", lanes_of_the_point), kind=REWIND
    ),
    "who goes back begins its logs anew": mutation(
        "rewind", (rewind_module, "Discarded", positions_of_the_point), kind=REWIND
    ),
    "who goes back forgets the past": mutation(
        "kept past", (HouseKeeper, "succeed", without_the_past), kind=REWIND
    ),
    "who goes back forgets output that waits": mutation(
        "durable", (Rewind, "make", without_what_waits), kind=REWIND
    ),
    "who goes back keeps its state": mutation(
        "conservation", (Rewind, "__init__", at_the_newest), kind=REWIND
    ),
    "who has heard of a section that goes back stays": mutation(
        "section", (section_module, "downstream", alone), kind=REWIND
    ),
    "who is not in the section goes back, too": mutation(
        "section", (Rewind, "_layer", all_at_the_point), kind=REWIND
    ),
    "a section is not sent all that came since": mutation(
        "conservation", (runs, "sent_since", sent_in_vain), kind=REWIND
    ),
    "nobody looks whether rows can come again": mutation(
        "rows again", (reread_module, "_read", nobody_looks), kind=REWIND
    ),
    "rows that come again are others": mutation(
        "rows again", (reread_module, "_read", only_counted), kind=REWIND
    ),
    "who goes back wants rows that it has": mutation(
        "rows again", (reread_module, "_read", from_the_beginning), kind=REWIND
    ),
}
