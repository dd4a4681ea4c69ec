"""Log entries that come after everybody has heard that they are lost."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.core import notes
from clonos.simulator.checks.violations import Violation
from clonos.simulator.mistakes.mutations import MUTATIONS
from tests.simulator.play import Play, sink, source, stage

LATE_MS = 250.0
TWO_WAYS = (source(), stage("first", 0), stage("second", 1, parallelism=2), sink(2))
"""Tasks 0 -> 1 -> 2 and 3 -> 4: the entries of 1 take two ways to the house-keeper."""


def entries_of_a_dead_task_come_late(seed):
    """Task 2 is at work, and has received what 1 made of 0's items meanwhile. It sends the entries
    of 1 that came with it to the house-keeper, and they are under way for long. 0 and 1 die, and
    what 0 has written is nowhere else: so these entries are void. Then the floor of 1 moves behind
    the cut, as the new entries have come by way of 3."""
    play = Play(TWO_WAYS, seed, depth=1, rows=200, marked=False, epoch_ms=15.0)
    cluster: Any = play.cluster
    network = cluster.network
    play.all_live()
    play.at(2, 4)
    durations = [0.4 * LATE_MS]
    cluster.work_duration = lambda: (
        durations.pop() if durations and play.machine(2).under_way is not None else 0.0
    )
    play.until(lambda: not durations)
    play.until(lambda: play.keeper.length(0) >= play.machine(2).dep[0].position)
    network.delay_from(play.slot(1), cluster.driver, 10 * LATE_MS)
    network.delay_from(play.slot(2), cluster.driver, LATE_MS)
    known, (channel,) = play.keeper.length(0), play.machine(2).spec.inputs
    play.until(lambda: play.machine(2).inputs[channel].queue)
    play.at(1, known + 40)
    held = play.machine(2).book.length(1)
    play.notes.clear()
    cluster.options.rows_ms = 15.0
    play.kill(0, 1)
    play.until(lambda: play.noted(notes.Fetched, 1))
    cut = play.noted(notes.Fetched, 1)[-1].length
    assert cut < held - 10
    assert not play.noted(notes.Orphan, 2)
    play.until(lambda: play.keeper.positions[1] > cut)
    assert play.keeper.length(1) < held
    return play


SEEDS = (0, 3, 7, 8)
"""In others, task 2 has taken more, or 3 less."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_lost_is_not_held_though_its_floor_has_passed_the_cut(seed):
    entries_of_a_dead_task_come_late(seed).finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_for_this_the_newest_cut_is_remembered_behind_the_floor(seed):
    lost = r"holds entry .* of task 1, which is lost"
    mutation = MUTATIONS["cuts are forgotten at the floor"]
    with mutation.active(), pytest.raises(Violation, match=lost) as found:
        entries_of_a_dead_task_come_late(seed).finish()
    assert found.value.invariant == "no orphans"
