"""The simulator finds every deliberate mistake, by the invariant that it breaks."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest

import clonos.core
import clonos.nodes
from clonos.simulator import command
from clonos.simulator.checks import (
    endings,
    implied,
    invariants,
    key_order,
    lethal,
    litter,
    past,
    recorder,
)
from clonos.simulator.checks import floors as floor_invariants
from clonos.simulator.checks import levels as level_invariants
from clonos.simulator.checks import upgrades as upgrade_invariants
from clonos.simulator.checks import wire as wire_invariants
from clonos.simulator.checks.violations import INVARIANTS
from clonos.simulator.jobs import long_logs
from clonos.simulator.mistakes.detection import (
    Detection,
    detect,
    read_seeds,
    run_mutated,
    run_right,
    write_seeds,
)
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.runs import moves

FILE = Path(__file__).with_name("mutations.json")
SEEDS = read_seeds(FILE)
TRIES = 20
"""So many seeds from the known one on: a change of the protocol moves it."""
RARE_TRIES = 400
"""So many for what no seed is known of."""

UPDATE = f"clonos sim --mutations --large --seeds 5000 --jobs 2 --write tests/simulator/{FILE.name}"


@cache
def detected(name: str) -> Detection:
    first, tries = SEEDS.get(name, 0), TRIES if name in SEEDS else RARE_TRIES
    return detect(name, range(first, first + tries), enough=1, large=True)


SOAK = (pytest.mark.soak, pytest.mark.xfail(reason="no seed is known that shows it", strict=True))
ALL = [n if n in SEEDS else pytest.param(n, marks=SOAK) for n in MUTATIONS]


@pytest.mark.parametrize("name", ALL)
def test_every_mistake_is_found_by_the_invariant_it_breaks(name):
    detection = detected(name)
    assert detection.caught, f"{detection.line()}\nto find other seeds: {UPDATE}"


@pytest.mark.soak
@pytest.mark.parametrize("name", SEEDS)
def test_without_the_mistake_nothing_is_found(name):
    result = run_right(name, detected(name).seed or 0, large=True)
    assert result.verdict != "violation", result.failure


def test_few_mistakes_are_not_found():
    """This may only become shorter."""
    assert MUTATIONS.keys() - SEEDS.keys() == {
        "cuts are forgotten at the floor"  # a script finds it: test_late_logs.py
    }


def test_every_invariant_has_a_mutation():
    assert {mutation.breaks for mutation in MUTATIONS.values()} == INVARIANTS.keys()


def checks() -> set[str]:
    """Functions that may raise a Violation."""
    found = set()
    for module in (
        invariants,
        floor_invariants,
        key_order,
        lethal,
        level_invariants,
        endings,
        implied,
        litter,
        long_logs,
        moves,
        past,
        recorder,
        upgrade_invariants,
        wire_invariants,
    ):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.FunctionDef) and node.name != "require":
                calls = (c.func for c in ast.walk(node) if isinstance(c, ast.Call))
                if any(isinstance(f, ast.Name) and f.id in ("require", "Violation") for f in calls):
                    found.add(node.name)
    return found


def state_checks() -> set[str]:
    """Methods ``check`` that assert something themselves."""
    found = set()
    for package in (clonos.core, clonos.nodes):
        for path in Path(package.__path__[0]).glob("*.py"):
            classes = (
                n for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, ast.ClassDef)
            )
            for owner in classes:
                for method in owner.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "check":
                        asserts = any(isinstance(node, ast.Assert) for node in ast.walk(method))
                        found |= {f"{owner.name}.check"} if asserts else set()
    return found


NOT_SHOWN = {"nothing_forgotten", "still_no_orphan"}
"""Checks that no known seed shows to fail: what breaks them is rare, or others see it first. This
may only become shorter."""


@pytest.mark.timeout(3600)  # a process that has run none of the tests above runs all seeds here
def test_every_check_has_a_mutation():
    shown = {detected(name).check for name in SEEDS}
    assert (checks() | state_checks()) - shown <= NOT_SHOWN


def test_the_command_finds_seeds_and_prints_the_rate(tmp_path, capsys):
    path = tmp_path / "seeds.json"
    name = "the delta is not stored"
    write_seeds(path, {name: 7_000_000, "no life is refused": 9})
    parser = command.parser()
    arguments = ["--mutations", "--mutation", name, "--seeds", "40", "--enough", "2"]
    assert command.run(parser.parse_args([*arguments, "--write", str(path)])) == 0
    said = capsys.readouterr().out
    assert "log before effect" in said
    assert "1 of 1 mutations" in said
    seeds = read_seeds(path)
    assert seeds.pop("no life is refused") == 9
    assert list(seeds) == [name]
    assert seeds[name] < 40
    assert run_mutated(name, seeds[name]).invariant == "log before effect"
