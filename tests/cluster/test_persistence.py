"""State that is in no checkpoint store: what each level survives, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clonos.errors import CannotUpgrade, StateLost

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
TASK = "running[0]"
ROWS = 500


def begun(kit: Any, spark: Any, folder: Path, level: str, **settings: Any) -> Any:
    """A job with state in a floor, whose last rows wait."""
    job = kit.build(
        kit.gated(folder, ROWS),
        rate=None,
        parallelism=1,
        persistence=level,
        local_dir=str(folder / "local"),
        **{"standbys": 1, "checkpoint_interval": "100 ms", **settings},
    )
    running = job.start(spark, progress_s=0.1)
    kit.wait_for(lambda: rows_in(running) == ROWS * 4 // 5)
    wait_current(kit, running)
    return running


def rows_in(running: Any) -> int:
    return running.last_progress.tasks[0].rows_in if running.last_progress else 0


def wait_current(kit: Any, running: Any) -> None:
    """Until floors are where tasks are, and copies have them. Rows are held back: it stays so."""
    before = running.last_progress
    kit.wait_quiet(running)

    def is_current() -> bool:
        if running.last_progress.number <= before.number + 1:
            return False  # it may tell of the time before a kill
        found = {task.name: task for task in running.last_progress.tasks}
        at_rest = not any(task.steps_to_replay for task in found.values())
        return at_rest and found[TASK].current_standbys == running.options.standbys

    kit.wait_for(is_current)


def keepers(running: Any) -> list[int]:
    """The processes of the copies."""
    return [slot.pid for slot in running.slots() if TASK in slot.keeps]


def kill_all_that_have_it(kit: Any, running: Any) -> None:
    """The task first: while it lives, the loss of a copy has another one made."""
    kit.kill_processes(*kit.pids(running, TASK), *keepers(running))


def recoveries(running: Any) -> list[Any]:
    return [r for r in running.observer.recoveries if r.name == TASK and r.finished]


def layers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.layer") if path.is_file()]


@pytest.mark.parametrize("checkpoints", ["marked", "uncoordinated"])
def test_state_in_memory_survives_the_process_that_has_it(kit, spark, tmp_path, checkpoints):
    store = tmp_path / "checkpoint"
    settings = {"checkpoints": checkpoints, "checkpoint_dir": str(store)}
    running = begun(kit, spark, tmp_path, "memory", **settings)
    for n in (1, 2):  # the second time, the copy was made by the one that took over
        kit.kill(running, TASK)
        kit.wait_for(lambda n=n: len(recoveries(running)) >= n)
        wait_current(kit, running)
    assert {r.level for r in recoveries(running)} == {"standby"}
    assert not layers(tmp_path), "nothing was written"
    kit.open_tap(tmp_path)
    kit.check(running.wait(kit.WAIT_S).table(), ROWS)


def test_state_in_memory_is_lost_with_all_processes_that_have_it(kit, spark, tmp_path):
    running = begun(kit, spark, tmp_path, "memory")
    kill_all_that_have_it(kit, running)
    with pytest.raises(StateLost, match=r"persistence='memory'\) is lost") as caught:
        running.wait(kit.WAIT_S)
    assert caught.value.where == TASK
    assert "1 standbys" in caught.value.what
    assert "checkpoint_dir" in caught.value.remedy


@pytest.mark.parametrize("standbys", [0, 1])
def test_state_on_local_disks_survives_all_processes_that_have_it(kit, spark, tmp_path, standbys):
    settings = {"standbys": standbys, "checkpoint_dir": str(tmp_path / "checkpoint")}
    running = begun(kit, spark, tmp_path, "local", **settings)
    assert len(keepers(running)) == standbys
    kill_all_that_have_it(kit, running)
    kit.wait_for(lambda: recoveries(running))
    recovery = recoveries(running)[-1]
    levels = {("local", recovery.state_bytes)}
    if standbys:  # if the copy's death is heard of first all the same, another slot has read it
        levels.add(("standby", 0))
    assert (recovery.level, recovery.store_bytes) in levels
    assert layers(tmp_path / "local")
    assert not layers(tmp_path / "checkpoint")
    kit.open_tap(tmp_path)
    kit.check(running.wait(kit.WAIT_S).table(), ROWS)
    assert not layers(tmp_path / "local"), "nobody needs it any more"


def test_a_job_on_local_disks_is_started_again(kit, spark, tmp_path):
    store = str(tmp_path / "checkpoint")
    running = begun(kit, spark, tmp_path, "local", checkpoint_dir=store)
    running.stop()
    kit.open_tap(tmp_path)
    again = kit.build(
        kit.gated(tmp_path, ROWS),
        rate=None,
        parallelism=1,
        persistence="local",
        local_dir=str(tmp_path / "local"),
        checkpoint_dir=store,
    ).start(spark)
    kit.check(again.wait(kit.WAIT_S).table(), ROWS)
    assert {r.level for r in again.observer.recoveries if r.name == TASK} <= {"local"}


def test_a_job_in_memory_is_not_started_again(kit, spark, tmp_path):
    store = str(tmp_path / "checkpoint")
    running = begun(kit, spark, tmp_path, "memory", checkpoint_dir=store)
    running.stop()
    again = kit.build(
        kit.gated(tmp_path, ROWS), rate=None, parallelism=1, persistence="store",
        checkpoint_dir=store,
    )  # fmt: skip
    with pytest.raises(StateLost, match="persistence='memory'"):
        again.run(spark)


def test_no_other_graph_takes_over_what_is_in_no_store(kit, spark, tmp_path):
    running = begun(kit, spark, tmp_path, "memory", checkpoint_dir=str(tmp_path / "checkpoint"))
    with pytest.raises(CannotUpgrade, match="persistence"):
        running.rescale(2)
    kit.open_tap(tmp_path)
    kit.check(running.wait(kit.WAIT_S).table(), ROWS)
