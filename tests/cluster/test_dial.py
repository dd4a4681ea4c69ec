"""Levels that are chosen under load: the checkpoint directory goes away, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.cluster import shipping

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
TASK = "running[0]"
ROWS = 5000


class Store:
    """The folder of a job's layers. While it is away, whoever opens anything in there gets an
    error that may pass: its name leads in a circle."""

    def __init__(self, folder: Path) -> None:
        self._layers, self._there = folder / "checkpoint" / "layers", folder / "there"
        self._layers.parent.mkdir()
        self._there.mkdir()
        (folder / "circle").symlink_to(folder / "circle")
        self._nowhere = folder / "circle"
        self.comes()

    def _points_to(self, place: Path) -> None:
        link = self._layers.with_name("link")
        link.symlink_to(place)
        link.replace(self._layers)

    def goes(self) -> None:
        self._points_to(self._nowhere)

    def comes(self) -> None:
        self._points_to(self._there)


class Heard(clonos.Listener):
    """Which levels a task has come to."""

    def __init__(self) -> None:
        self.levels: list[str] = []

    def on_level(self, changed: Any) -> None:
        if changed.task == TASK:
            self.levels.append(changed.level)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(shipping, "LATE_S", 0.2)
    monkeypatch.setattr(shipping, "QUIET_S", 0.5)
    return Store(tmp_path)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def begun(
    kit: Any, spark: Any, folder: Path, heard: Heard, checkpoints: str = "uncoordinated"
) -> Any:
    """A job with all its copies, some of whose rows come later. Without markers nobody seals at
    rest, so copies have all that is stored."""
    job = kit.build(
        kit.gated(folder, ROWS, begins=False),
        rate=1000.0,
        parallelism=1,
        persistence="auto",
        standbys=1,
        checkpoints=checkpoints,
        checkpoint_interval="100 ms",
        checkpoint_dir=str(folder / "checkpoint"),
        local_dir=str(folder / "local"),
    )
    running = job.start(spark, progress_s=0.1, listeners=[heard])
    kit.wait_quiet(running)

    def is_current() -> bool:
        tasks, now = running.last_progress.tasks, running.last_progress.checkpoint
        at_rest = not any(task.steps_to_replay for task in tasks)
        has_copies = all(task.current_standbys == 1 for task in tasks)
        return at_rest and has_copies and now.id == now.hard_id > 0

    kit.wait_for(is_current)  # a copy reads what is in the directory while it is there
    return running


def told(running: Any) -> Any:
    return {task.name: task for task in running.last_progress.tasks}[TASK]


def go_on_without_store(kit: Any, running: Any, store: Store, folder: Path) -> None:
    """Until floors have moved that are in no store."""
    store.goes()
    kit.begin(folder)

    def is_without() -> bool:
        now = running.last_progress.checkpoint
        return bool(told(running).level != "store" and now.id > now.hard_id + 1)

    kit.wait_for(is_without)


def test_a_task_comes_back_from_where_it_is_kept_while_the_directory_is_away(
    kit, spark, tmp_path, store, heard
):
    running = begun(kit, spark, tmp_path, heard)
    go_on_without_store(kit, running, store, tmp_path)
    assert "the checkpoint store" in told(running).level_why
    assert told(running).persistence == "auto"
    before = len(running.observer.recoveries)
    kit.kill(running, TASK)
    kit.wait_recovered(running, before + 1)
    found = [r for r in running.observer.recoveries if r.name == TASK and r.finished][-1]
    assert found.level in ("standby", "local", "memory")
    assert running.last_progress.checkpoint.hard_id < running.last_progress.checkpoint.id
    store.comes()

    def is_back() -> bool:
        now = running.last_progress.checkpoint
        return bool(told(running).level == "store" and now.id == now.hard_id)

    kit.open_tap(tmp_path)
    kit.wait_for(lambda: not running.is_running or is_back())
    kit.check(running.wait(kit.WAIT_S).table(), ROWS)
    assert heard.levels[0] == "local"
    assert any("its state is kept at 'local', too" in text for text in running.warnings)


@pytest.mark.soak
def test_what_was_in_no_store_is_done_again_when_all_who_had_it_are_gone(
    kit, spark, tmp_path, store, heard
):
    running = begun(kit, spark, tmp_path, heard)
    go_on_without_store(kit, running, store, tmp_path)
    copies = [slot.pid for slot in running.slots() if TASK in slot.keeps]
    for layer in (tmp_path / "local").rglob("*.layer"):
        layer.unlink(missing_ok=True)
    kit.kill_processes(*kit.pids(running, TASK), *copies)
    store.comes()
    kit.open_tap(tmp_path)
    kit.check(running.wait(kit.WAIT_S).table(), ROWS)


def test_a_job_goes_on_from_its_directory_that_had_gone_on_without(
    kit, spark, tmp_path, store, heard
):
    running = begun(kit, spark, tmp_path, heard, "marked")
    go_on_without_store(kit, running, store, tmp_path)
    running.stop()
    store.comes()
    kit.open_tap(tmp_path)
    for layer in (tmp_path / "local").rglob("*.layer"):
        layer.unlink()
    again = kit.build(
        kit.gated(tmp_path, ROWS),
        rate=None,
        parallelism=1,
        persistence="auto",
        checkpoints="marked",
        checkpoint_dir=str(tmp_path / "checkpoint"),
        local_dir=str(tmp_path / "local"),
    ).start(spark)
    kit.check(again.wait(kit.WAIT_S).table(), ROWS)
