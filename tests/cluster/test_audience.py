"""What listeners of a job's events hear."""

from __future__ import annotations

import logging

from clonos.cluster.audience import Observer
from clonos.core import notes
from clonos.core.plan import Incarnation
from clonos.nodes.views import STAGES, JobEvent

LIFE = Incarnation(1, 2)
EVENTS = {
    notes.Detected(0, LIFE): ("detected", "count[0]", 0, ""),
    notes.Fenced(0, LIFE): ("fenced", "count[0]", 0, ""),
    notes.Fetched(0, LIFE, 9): ("fetched", "count[0]", 9, ""),
    notes.Activated(0, LIFE): ("activated", "count[0]", 0, ""),
    notes.Restored(0, LIFE, 7, 70): ("restored", "count[0]", 7, ""),
    notes.Live(0, LIFE, 11): ("live", "count[0]", 11, ""),
    notes.Orphan(0): ("orphan", "count[0]", 0, ""),
    notes.Unreadable(0, 3): ("unreadable", "count[0]", 3, ""),
    notes.Generation(2): ("generation", "", 2, ""),
    notes.Floor(7): ("floor", "", 7, ""),
    notes.Hard(6): ("hard", "", 6, ""),
    notes.Back(5): ("back", "", 5, ""),
    notes.Standby(0, 7): ("standby", "count[0]", 7, ""),
    notes.Level(0, "memory", "it is slow"): ("level", "count[0]", 0, "it is slow"),
    notes.Moving(0, LIFE): ("moving", "count[0]", 0, ""),
    notes.Rival(0, 4): ("rival", "count[0]", 4, ""),
    notes.Moved(0, 4): ("moved", "count[0]", 4, ""),
    notes.Stayed(0, "it is full"): ("stayed", "count[0]", 0, "it is full"),
    notes.Stayed(0, "it failed", 4): ("stayed", "count[0]", 4, "it failed"),
    notes.Unreachable(0, 3, "it is silent"): ("unreachable", "count[0]", 3, "it is silent"),
    notes.Outside(0, 4): ("outside", "count[0]", 4, ""),
    notes.Together(0, 4): ("together", "count[0]", 4, ""),
    notes.Call(0, "ask(7)", 2, is_alone=True): ("call", "count[0]", 2, "ask(7)"),
}


def kinds_of(base: type[notes.Note]) -> list[type[notes.Note]]:
    """The kinds that are made: of the others there are others."""
    classes = [each for each in vars(notes).values() if isinstance(each, type)]
    found = [each for each in classes if issubclass(each, base)]
    return [each for each in found if sum(issubclass(other, each) for other in found) == 1]


def test_listeners_know_each_kind_by_its_word():
    """Users compare with these words; they stay when classes get other names."""
    heard: list[JobEvent] = []
    observer = Observer(["count[0]"])
    observer.listeners = (heard.append,)
    for note in EVENTS:
        observer.note(note, 1.5)
    told = [(event.what, event.task, event.value, event.why) for event in heard]
    assert told == list(EVENTS.values())
    assert {type(note) for note in EVENTS} == set(kinds_of(notes.Note))
    assert [kind.__name__.lower() for kind in kinds_of(notes.Stage)] == list(STAGES)


def test_a_listener_that_raises_cannot_harm(caplog):
    observer = Observer(["count[0]"])
    heard: list[JobEvent] = []

    def broken(event: JobEvent) -> None:
        raise ValueError(event.what)

    observer.listeners = (broken, heard.append)
    with caplog.at_level(logging.ERROR, "clonos"):
        observer.note(notes.Standby(0, 7), 1.5)
    assert heard == [JobEvent("standby", "count[0]", 7, 1.5)]
    assert "ValueError" in caplog.text
