"""Logs that grow faster than checkpoints shorten them: big answers, and floors that are rare."""

from __future__ import annotations

from random import Random

import pytest

from clonos.simulator.checks.violations import Violation
from clonos.simulator.command import main
from clonos.simulator.jobs.long_logs import LogWatch
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.runs.kinds import Kind

ROWS = 300
ANSWER = 1_500
LIMIT = 40_000
"""Less than a tenth of what all answers take."""
NEVER = 1e7
ASKING = (
    Stage("source", 1, (), Behaviour()),
    Stage("ask", 1, (0,), Behaviour(call_every=1)),
    Stage("sink", 1, (1,), Behaviour(), is_sink=True),
)


def run(*, has_markers: bool = True, store_ms: float = 50.0) -> tuple[LogWatch, int]:
    """A job whose checkpoints never come by themselves, and how many have come."""
    job = build_job(ASKING, sharing_depth=1, rows=ROWS)
    object.__setattr__(job.plan, "has_markers", has_markers)
    options = Options(
        slots=3, standbys=0, epoch_ms=NEVER, rows_ms=5.0, store_ms=store_ms, log_bytes=LIMIT
    )
    cluster = Cluster(job, options, Random(1))
    cluster.recorder.checks_state = False
    cluster.service.answer_bits = 8 * ANSWER
    watch = LogWatch(cluster, 0.0)
    cluster.start()
    assert cluster.run(600_000.0).state == "done"
    cluster.recorder.check_end(cluster.service)
    return watch, cluster.driver.keeper.epoch


@pytest.mark.parametrize("has_markers", [True, False])
def test_no_process_holds_much_more_of_the_logs_than_it_may(has_markers: bool) -> None:
    """What is on its way to who asks, it still asks for: that is what comes on top."""
    watch, floors = run(has_markers=has_markers)
    assert floors >= ROWS * ANSWER // LIMIT // 2
    assert LIMIT / 2 < watch.most < 2 * LIMIT


def test_sources_wait_while_the_store_takes_its_time() -> None:
    watch, _ = run(store_ms=2000.0)
    assert watch.most < 2 * LIMIT


def test_else_it_would_hold_them_all() -> None:
    with (
        MUTATIONS["sources go on however long logs are"].active(),
        pytest.raises(Violation, match="bounded memory: sources go on"),
    ):
        run(store_ms=2000.0)


def test_no_seed_holds_too_much_or_waits_for_ever() -> None:
    assert main(2, 0, jobs=1, kind=Kind(logs=True)) == 0


@pytest.mark.soak
def test_nor_do_many_more() -> None:
    assert main(2000, 2_000_000, jobs=2, kind=Kind(logs=True)) == 0
