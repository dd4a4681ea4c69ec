"""More dies than the sharing depth covers: logs are lost on which others depend.

A chain with depth 1. What is asked is in the log of `asked`, and at one hop, in `passed`. Both are
killed together while what they have sent to the house-keeper is still on its way; `out` has taken
rows that depend on it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.nodes.driver import DriverNode

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

FIRST = Incarnation(1, 0)
LOST = 200
"""So many rows `out` has taken that rest on log entries which only the two hold."""


class Link:
    """The way of some tasks to the house-keeper: once it is cut, their first lives' messages never
    arrive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.is_cut = False
        arrives = DriverNode._on_message

        def on_message(node: DriverNode, conn: int, message: Any) -> None:
            channel = node._channels[conn][0] if conn in node._channels else None
            sender = None if channel is None else node.plan.channels[channel].sender
            is_theirs = sender is not None and node.plan.tasks[sender].name in names
            is_lost = self.is_cut and is_theirs and type(message) is msg.Data
            if not (is_lost and message.incarnation == FIRST):
                arrives(node, conn, message)

        monkeypatch.setattr(DriverNode, "_on_message", on_message)


class Chain:
    """The job, what it has asked, and what has happened to it."""

    def __init__(self, kit: Any, spark: Any, folder: Path, on_orphan: Any) -> None:
        self.kit, self.journal, self.events = kit, folder / "asked", list[tuple[str, str]]()
        journal = self.journal

        def ask(n: int) -> str:
            nonce = uuid.uuid4().hex
            with journal.open("a", encoding="utf-8") as file:
                file.write(f"{n} {nonce}\n")
            return nonce

        job = clonos.Job(
            "orphans",
            sharing_depth=1,
            on_orphan=on_orphan,
            standbys=0,
            checkpoint_interval="1 hour",
        )
        (
            job.source(kit.until_tapped(folder), name="numbers", rows_per_second=250)
            .slot_group("asked")
            .map(
                lambda row, ctx: (row.n, ctx.call(ask, row.n)), "n long, nonce string", name="asked"
            )
            .slot_group("passed")
            .map(lambda row: (row.n, row.nonce), "n long, nonce string", name="passed")
            .slot_group("out")
            .sink(clonos.sinks.collect(), name="out")
        )
        self.running = job.start(spark, progress_s=0.05)
        self.running.on_event(lambda event: self.events.append((event.what, event.task)))

    def taken(self) -> int:
        """Rows that `out` has taken."""
        progress = self.running.last_progress
        rows = (
            [task.rows_in for task in progress.tasks if task.name == "out[0]"] if progress else []
        )
        return sum(rows)

    def lose(self, link: Link, recoveries: int) -> None:
        """The two die with what only they know, and all is well again."""
        kit, running = self.kit, self.running
        kit.wait_rows(running, LOST)
        link.is_cut = True
        known = len(self.journal.read_text().splitlines())  # no log of a later question arrives
        kit.wait_for(lambda: not running.is_running or self.taken() >= known + LOST)
        kit.kill(running, "asked[0]", "passed[0]")
        kit.wait_recovered(running, recoveries)
        kit.wait_rows(running, LOST)

    @property
    def asked(self) -> Counter[int]:
        """How often it was asked for each number."""
        return Counter(int(line.split()[0]) for line in self.journal.read_text().splitlines())

    @property
    def given(self) -> set[str]:
        return set(self.journal.read_text().splitlines())


def test_consistency_takes_the_orphan_back(kit, spark, tmp_path, monkeypatch):
    """Nothing is delivered that rests on what was lost: exactly once, and the answers fit."""
    link = Link(monkeypatch, "asked[0]", "passed[0]")
    chain = Chain(kit, spark, tmp_path, "consistency")
    assert [task.name for task in chain.running.plan.tasks][-3:] == [
        "asked[0]",
        "passed[0]",
        "out[0]",
    ]
    chain.lose(link, recoveries=3)
    kit.open_tap(tmp_path)
    result = chain.running.wait(kit.WAIT_S)
    rows = result.table().to_pylist()
    assert [row["n"] for row in rows] == list(range(len(rows)))
    assert {f"{row['n']} {row['nonce']}" for row in rows} <= chain.given
    assert sum(times > 1 for times in chain.asked.values()) > LOST // 2
    assert {r.name for r in result.recoveries} == {"asked[0]", "passed[0]", "out[0]"}
    assert ("orphan", "out[0]") in chain.events
    assert (result.generation, result.warnings) == (0, [])


def test_availability_keeps_the_orphan_and_says_so(kit, spark, tmp_path, monkeypatch):
    """It goes on with what it has, and gets rows once more, with other answers; none is lost."""
    link = Link(monkeypatch, "asked[0]", "passed[0]")
    chain = Chain(kit, spark, tmp_path, "availability")
    chain.lose(link, recoveries=2)
    kit.open_tap(tmp_path)
    result = chain.running.wait(kit.WAIT_S)
    rows = result.table().to_pylist()
    times = Counter(row["n"] for row in rows)
    assert times.keys() == set(range(max(times) + 1))
    assert max(times.values()) == 2
    assert sum(count == 2 for count in times.values()) > LOST // 2
    assert {f"{row['n']} {row['nonce']}" for row in rows} <= chain.given
    assert {r.name for r in result.recoveries} == {"asked[0]", "passed[0]"}
    assert result.generation == len(result.warnings) == 1
