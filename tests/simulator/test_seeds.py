"""Random graphs, random faults: no invariant is violated."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from clonos.simulator import command, main
from clonos.simulator.jobs.calls import with_calls
from clonos.simulator.jobs.programs import random_job
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate
from clonos.simulator.runs.sizes import SMALL

SEEDS = 48
"""Of each kind of job some; twenty thousand in the soak tier."""
PARTS = 16


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_violates_an_invariant(part):
    failures = []
    for seed in range(part, SEEDS, PARTS):
        result = simulate(seed)
        if result.verdict == "violation":
            failures.append(f"clonos sim --seed {seed}: {result.failure}")
    assert not failures, "\n".join(failures)


def test_a_seed_is_the_same_simulation_every_time():
    first, second = simulate(7), simulate(7)
    assert first == second


def test_a_digest_tells_apart_what_went_another_way():
    """Even where the verdict is the same: a layer is acknowledged a little earlier."""
    others = [simulate(0), simulate(0, Kind(harsh=True)), simulate(1)]
    assert len({result.digest for result in others}) == 3
    for seed in range(40):
        before = simulate(seed)
        with MUTATIONS["a layer does not wait for delivery"].active():
            after = simulate(seed)
        if after.verdict == before.verdict == "ok" and after.digest != before.digest:
            return
    pytest.fail("no seed went another way, or none could be told apart")


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_digest_is_the_same_in_every_process(hash_seed):
    program = "from clonos.simulator.runs.seeds import simulate; print(simulate(7).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    said = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert said.strip() == simulate(7).digest


def run(*arguments):
    return command.run(command.parser().parse_args(arguments))


def test_the_command_says_how_to_repeat_a_failure(capsys):
    assert run("--seeds", "3", "--mutation", "the delta is not stored") == 1
    said = capsys.readouterr().out
    assert "clonos sim --seed 1 --trace" in said
    assert "log before effect" in said


def test_the_command_says_one_digest_of_many_seeds(capsys):
    said = []
    for arguments in (("--jobs", "2"), (), ("--first-seed", "1")):
        assert run("--seeds", "8", "--digest", *arguments) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    assert said[0].startswith("digest ")
    assert said[0].endswith("violations: 0\n")


def test_the_command_reports_coverage(capsys):
    assert main(12, 100, jobs=min(2, os.cpu_count() or 1)) == 0
    said = capsys.readouterr().out
    assert "seeds/s" in said
    assert "checkpoint" in said


def test_the_command_says_of_which_kind_a_failing_seed_is(capsys):
    mutation = ("--mutation", "the delta is not stored")
    assert run("--seeds", "20", "--jobs", "1", "--harsh", "--availability", *mutation) == 1
    assert "clonos sim --harsh --availability --seed" in capsys.readouterr().out


def test_no_seed_violates_an_invariant_where_neighbourhoods_die_and_orphans_go_on():
    assert main(8, jobs=1, kind=Kind(harsh=True, availability=True)) == 0


@pytest.mark.parametrize("availability", [None, True])
def test_no_seed_violates_an_invariant_where_recoveries_overlap(availability):
    assert main(5, jobs=1, kind=Kind(overlap=True, availability=availability)) == 0


def test_no_seed_violates_an_invariant_where_jobs_keep_their_past():
    assert main(12, jobs=1, kind=Kind(history=True)) == 0


def test_canaries_say_what_a_branch_says():
    assert main(1, jobs=1, kind=Kind(canary=True)) == 0


@pytest.mark.parametrize("kind", [{}, {"disk": True}, {"harsh": True}, {"arrow": True}])
def test_no_seed_violates_an_invariant_where_channels_are_bytes(kind):
    assert main(6, 100, jobs=1, kind=Kind(wire=True, **kind)) == 0


@pytest.mark.parametrize("harsh", [False, True])
def test_no_seed_violates_an_invariant_where_nothing_is_logged_or_kept(harsh):
    assert main(12, jobs=1, kind=Kind(gaps=True, harsh=harsh)) == 0


def test_no_seed_violates_an_invariant_where_every_job_has_calls():
    assert main(8, jobs=1, kind=Kind(calls=True)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_every_stage_that_can_has_calls(seed):
    random = Random(seed)
    job = with_calls(random_job(random, SMALL.tasks, SMALL.rows), random, always=True)
    others = [s.behaviour for s in job.stages if not s.behaviour.in_flight]
    assert len(others) < len(job.stages)
    assert all(b.waits_for_watermark or b.timer_ms for b in others)


def test_no_seed_violates_an_invariant_where_tasks_leave_out_their_logs():
    assert main(10, jobs=1, kind=Kind(implied=True)) == 0


@pytest.mark.parametrize("seed", [1200, 1314, 1338])
def test_what_an_implied_task_was_told_may_be_void(seed):
    """A new life that had made nothing held its receivers to what came of a log that was lost."""
    assert simulate(seed, Kind(implied=True, large=True)).failure == ""


@pytest.mark.parametrize(("seed", "kind"), [(7003145, Kind()), (102, Kind(wire=True))])
def test_nobody_deletes_while_the_store_is_away_or_the_driver_is_frozen(seed, kind):
    assert simulate(seed, kind._replace(large=True)).verdict == "ok"


def test_a_call_that_kills_within_steps_of_others_takes_no_more_lives():
    """Copies survived those steps, time and again, and nobody looked for a call."""
    assert simulate(600000889).verdict == "ok"


def test_a_call_that_kills_is_found_though_the_next_process_comes_before_the_death_is_known():
    """Such deaths did not count, because the driver took the old process for given up; or else they
    cleared the call, because the driver had not yet heard that it was being made."""
    for seed in (661000093, 680000654):
        assert simulate(seed, Kind(calls=True)).verdict == "ok"


def test_a_call_that_asks_something_else_in_each_life_is_found():
    """It followed from an answer that was lost each time, with the executor."""
    assert simulate(745101110, Kind(calls=True)).verdict == "ok"


def test_rows_that_a_copy_has_survived_are_not_to_blame_for_what_was_before():
    """Each life died of a call, and within the same step. One copy survived the step, the next
    came to no end."""
    assert simulate(745092658, Kind(calls=True)).verdict == "ok"


def test_a_generation_begins_with_the_last_of_several_losses():
    """A task had sealed between two of them, with the new generation, and had nothing to seal after
    that. Its layer could never be a floor, and sources waited for floors."""
    assert simulate(730315173).verdict == "ok"


def test_a_call_that_kills_while_steps_are_tried_is_found():
    """The first lives died within steps, by chance, and one more while a step was tried."""
    assert simulate(730392469).verdict == "ok"


def test_merges_that_keep_up_are_seen():
    """The judge looked when one layer more had come, each time."""
    assert simulate(40047, Kind(levels=True)).verdict == "ok"


def test_an_older_journal_goes_only_when_the_name_of_the_newer_one_is_on_the_disk():
    """A driver died after a failed sync of the folder; the next one deleted the older journal."""
    assert simulate(746083578, Kind(calls=True)).verdict != "violation"


def test_a_task_that_has_finished_does_not_hold_up_the_calls_of_others():
    """It was still watched, so from then on each call of its process waited for 0.1 s."""
    assert simulate(730237611).verdict == "ok"


def test_what_a_replaced_process_held_is_gone_though_its_stream_has_not_ended():
    """A judge counted on its part of a log."""
    assert simulate(730000879).verdict == "ok"


def test_two_merges_at_once_never_give_one_name():
    """One came too late, and was deleted under the name of a later one that counted."""
    assert simulate(90000093).verdict == "ok"


def test_one_seed_can_be_traced(capsys):
    assert run("--seed", "3", "--trace") == 0
    assert "Activate" in capsys.readouterr().out


@pytest.mark.soak
def test_many_more_seeds():
    assert main(20_000, 1_000_000, jobs=2) == 0


@pytest.mark.soak
def test_many_more_seeds_with_channels_of_bytes():
    assert main(3_000, 1_000_000, jobs=2, kind=Kind(wire=True)) == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_more_seeds_where_nothing_is_logged_or_kept():
    assert main(3_000, 1_000_000, jobs=2, kind=Kind(gaps=True)) == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_more_seeds_where_tasks_leave_out_their_logs():
    assert main(3_000, 1_000_000, jobs=2, kind=Kind(implied=True)) == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_more_seeds_where_every_job_has_calls():
    assert main(10_000, 1_000_000, jobs=2, kind=Kind(calls=True)) == 0


@pytest.mark.soak
def test_many_more_seeds_of_jobs_that_keep_their_past():
    assert main(3_000, 1_000_000, jobs=2, kind=Kind(history=True)) == 0
