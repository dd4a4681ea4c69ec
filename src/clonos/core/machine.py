"""State machines as tables.

A *table* says which event leads from which state to which; anything else is an
:class:`InvalidTransition`. A *machine* is one thing that follows a table. It keeps its last
transitions, its *story*: an error shows the stories of the machines involved. The diagrams in
``docs/machines.md`` are made from the tables.

Machines move when something connects, fails, is sealed or recovers, but never for an item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from clonos.errors import ProtocolError

STORY_LENGTH: Final = 32
"""Transitions kept per machine: enough for several failures, and a few kilobytes."""

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class InvalidTransition(ProtocolError):
    """Something happened that cannot happen in this state: a bug in clonos."""


class Table(Generic[State, Event]):
    """The transitions of one kind of machine.

    Parameters
    ----------
    name
        What follows this table.
    start
        The state in which a machine begins.
    rows
        From (state, event) to the next state.
    """

    def __init__(self, name: str, start: State, rows: Mapping[tuple[State, Event], State]) -> None:
        self.name = name
        self.start = start
        self.rows = dict(rows)

    def machine(self, of: str, state: State | None = None) -> Machine[State, Event]:
        """A machine for the thing called `of`, in its first state or (restored) in another."""
        return Machine(self, of, self.start if state is None else state)

    def diagram(self) -> str:
        """The table as a Mermaid state diagram.

        Transitions between the same two states share an arrow; an event that leads from every
        other state to one is drawn once, from "any".
        """
        states = list(dict.fromkeys([self.start, *(s for s, _ in self.rows), *self.rows.values()]))
        lines = [f"    [*] --> {self.start.name}"]
        arrows: dict[tuple[str, str], list[str]] = {}
        for event in dict.fromkeys(event for _, event in self.rows):
            froms = {s: after for (s, e), after in self.rows.items() if e is event}
            (first, *others) = set(froms.values())
            from_any = not others and set(froms) >= set(states) - {first} and len(states) > 3
            for state, after in {"any": first}.items() if from_any else froms.items():
                name = state if isinstance(state, str) else state.name
                arrows.setdefault((name, after.name), []).append(event.value)
        lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
        return "\n".join(["stateDiagram-v2", *lines])


class Machine(Generic[State, Event]):
    """One thing whose life follows a table.

    Examples
    --------
    >>> Door, Act = Enum("Door", "OPEN SHUT"), Enum("Act", {"CLOSE": "close", "PAINT": "paint"})
    >>> table = Table("a door", Door.OPEN, {(Door.OPEN, Act.CLOSE): Door.SHUT})
    >>> door = table.machine("front door")
    >>> door.on(Act.CLOSE)
    <Door.SHUT: 2>
    >>> door.story()
    'front door: OPEN -close-> SHUT'
    >>> door.on(Act.PAINT)
    Traceback (most recent call last):
        ...
    clonos.core.machine.InvalidTransition: front door: "paint" cannot happen when SHUT
      story: front door: OPEN -close-> SHUT
    """

    __slots__ = ("_rows", "_story", "of", "state")

    def __init__(self, table: Table[State, Event], of: str, state: State) -> None:
        self.of = of
        self.state = state
        self._rows = table.rows
        self._story: deque[tuple[State, Event]] = deque(maxlen=STORY_LENGTH)

    def on(self, event: Event) -> State:
        """Take an event; return the new state.

        Raises
        ------
        InvalidTransition
            The table has no such event in this state.
        """
        state = self._rows.get((self.state, event))
        if state is None:
            raise with_stories(
                InvalidTransition(
                    f'"{event.value}" cannot happen when {self.state.name}', where=self.of
                ),
                [self],
            )
        self._story.append((self.state, event))
        self.state = state
        return state

    def may(self, event: Event) -> bool:
        """Whether the table has this event in this state."""
        return (self.state, event) in self._rows

    def story(self) -> str:
        """The last transitions, oldest first."""
        steps = "".join(f"{state.name} -{event.value}-> " for state, event in self._story)
        return f"{self.of}: {steps}{self.state.name}"


E = TypeVar("E", bound=ProtocolError)


def with_stories(error: E, machines: Iterable[Machine[Any, Any]]) -> E:
    """Add to `error` the stories of `machines`, and return it."""
    known = set(error.stories)
    stories = [machine.story() for machine in machines]
    error.stories = (*error.stories, *(story for story in stories if story not in known))
    return error
