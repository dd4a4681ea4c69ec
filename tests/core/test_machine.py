"""Tables of transitions: what cannot happen is an error that tells how it came to be."""

from __future__ import annotations

import pickle
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import clonos.core
import clonos.nodes
import clonos.transport
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.machine import STORY_LENGTH, InvalidTransition, Table
from clonos.core.plan import Incarnation
from clonos.core.task import TaskMachine
from clonos.nodes.diagrams import TABLES, page
from clonos.simulator.jobs.programs import Stage, build_job
from clonos.simulator.world.virtual import NoWorld

DOCS = Path(__file__).parents[2] / "docs" / "machines.md"
FIRST = Incarnation(1, 0)


class Lamp(Enum):
    DARK = "dark"
    LIT = "lit"


class Act(Enum):
    PRESS = "pressed"
    BREAK = "broken"


LAMP = Table(
    "a lamp", Lamp.DARK, {(Lamp.DARK, Act.PRESS): Lamp.LIT, (Lamp.LIT, Act.PRESS): Lamp.DARK}
)


def test_the_page_of_diagrams_is_made_from_the_tables():
    assert DOCS.read_text("utf-8") == page(), "run: make machines"


def test_every_table_is_on_the_page():
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for package in (clonos.core, clonos.nodes, clonos.transport)
        for module in iter_modules(package.__path__)
    ]
    tables = {t.name for module in modules for t in vars(module).values() if isinstance(t, Table)}
    assert tables == {table.name for table in TABLES}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_state_can_be_reached_and_every_event_happens(table):
    reached, new = set(), {table.start}
    while new:
        reached |= new
        new = {after for (state, _), after in table.rows.items() if state in reached} - reached
    states: Any = type(table.start)
    assert reached == set(states)
    kinds: Any = {type(event) for _, event in table.rows}
    (kind,) = kinds
    assert {event for _, event in table.rows} == set(kind)


def test_a_story_has_the_last_transitions_and_no_more():
    lamp = LAMP.machine("desk lamp")
    for _ in range(3 * STORY_LENGTH):
        lamp.on(Act.PRESS)
    assert lamp.story().count("->") == STORY_LENGTH


def test_what_cannot_happen_is_an_error_with_the_story_also_in_another_process():
    lamp = LAMP.machine("desk lamp")
    lamp.on(Act.PRESS)
    assert not lamp.may(Act.BREAK)
    with pytest.raises(InvalidTransition) as caught:
        lamp.on(Act.BREAK)
    assert lamp.state is Lamp.LIT
    assert "desk lamp: DARK -pressed-> LIT" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_error_in_a_task_tells_the_stories_of_its_life_and_its_ends():
    job = build_job(
        (Stage("source", 1, ()), Stage("sink", 1, (0,), is_sink=True)), sharing_depth=1, rows=5
    )
    activate = msg.Activate(1, FIRST, (), (), (), ())
    task = TaskMachine(job.plan, activate, job.program(1), (), NoWorld(job.decode))
    task.start()
    task.handle(ev.Opened(0, 1, FIRST))
    with pytest.raises(InvalidTransition) as caught:
        task.handle(ev.Received(0, 1, msg.Welcome(0, FIRST, 1, 0)))
    told = str(caught.value)
    assert "RESTORING -layers applied-> REPLAYING -log exhausted-> LIVE" in told
    assert "channel 0, receiving, stream: AWAY -opened-> OPEN -greeted-> GREETED" in told
