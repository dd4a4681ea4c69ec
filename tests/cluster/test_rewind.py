"""A job goes back to a point of its past and on from there, while processes are killed."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.cli import main
from clonos.errors import CannotRewind
from tests.cluster.test_upgrade import all_the_rest, more, staged

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 2_000
TOLD = "key string, total long, receipt string"


class Bank:
    """Writes down what it is asked, in a file that outlives processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def __call__(self, key: str, n: int, *, call: Any) -> str:
        await asyncio.sleep(0.001)
        with self.path.open("a") as file:
            file.write(f"{call.key} {key} {n}\n")
        return f"{key} {n}"


class Totals(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        total = ctx.state("total", "long")
        total.set(total.get(0) + row.n)
        yield row.key, total.get(), row.receipt


@pytest.fixture
def made(kit, tmp_path):
    source = staged(kit, tmp_path, ROWS)
    charge = clonos.effect(idempotent=True)(Bank(tmp_path / "bank"))

    def make(rate: float = 600.0) -> clonos.Job:
        job = clonos.Job(
            "totals",
            parallelism=2,
            checkpoint_dir=str(tmp_path / "checkpoint"),
            checkpoint_interval="100 ms",
            history="1 hour",
            history_interval="100 ms",
        )
        events = job.source(source, name="events", parallelism=1, rows_per_second=rate)
        paid = events.with_column_async("receipt string", charge, "key", "n", in_flight=20)
        totals = paid.key_by("key").process(Totals(), TOLD, name="totals")
        totals.sink(clonos.sinks.collect(), name="out")
        totals.sink(clonos.sinks.table(str(tmp_path / "table")), name="table")
        return job

    return make


def due(kit: Any) -> list[tuple[str, int]]:
    sums: Counter[str] = Counter()
    found = []
    for _, key, n in map(kit.row, range(ROWS)):
        sums[key] += n
        found.append((key, sums[key]))
    return sorted(found)


def points_of(capsys: Any, folder: Path) -> list[int]:
    assert main(["history", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    return [int(line.split()[0]) for line in lines if line.split()[0].isdigit()]


def test_what_was_made_since_is_made_again(kit, spark, tmp_path, made, capsys):
    running = made().start(spark)
    kit.wait_rows(running, 120, sink="out")
    with pytest.raises(CannotRewind, match="is running"):
        made().rewind(at="oldest")
    more(tmp_path)
    kit.wait_rows(running, 120, sink="out")
    kit.kill(running, "totals[1]")
    kit.wait_recovered(running, 1)
    kit.wait_rows(running, 30, sink="out")
    kit.wait_for(lambda: running.last_progress.history.points >= 4)  # one to go to, others behind
    running.stop()
    before = running.wait(0).rows["out"]
    points = points_of(capsys, tmp_path / "checkpoint")
    point = points[len(points) // 2]
    source = (tmp_path / "in.csv").read_text()
    end = source.index("\n") + 1  # before any point, and where a line ends
    first, rest = source[:end], source[end:]
    for now, match in (
        (first, "cannot be read again"),
        (first + rest.replace(",1", ",2"), "other"),
    ):
        (tmp_path / "in.csv").write_text(now)
        with pytest.raises(CannotRewind, match=match):
            made().rewind(at="oldest")
        would = made().rewind(at="oldest", check_sources=False, dry_run=True)
        assert "rows of events can come again was not looked at" in str(would)
    (tmp_path / "in.csv").write_text(source)
    would = made().rewind(at=point, outputs="supersede", dry_run=True)
    assert re.search(r"\d+ rows of events come again", str(would))
    assert "would go back" in str(would)
    assert points_of(capsys, tmp_path / "checkpoint") == points
    done = made().rewind(at=point, outputs="supersede")
    assert (done.lanes, done.generation) == (would.lanes, 1)
    assert f"is back at point {point}" in str(done)
    assert any(lane.newest > lane.kept for lane in done.lanes)
    assert main(["history", str(tmp_path / "checkpoint")]) == 0
    assert f"went back to point {point}: generation 1" in capsys.readouterr().out
    assert points_of(capsys, tmp_path / "checkpoint") == points
    with pytest.raises(CannotRewind, match="was deleted"):
        made().rewind(at=points[-1])
    running = made(2000.0).start(spark)
    assert any("went back to point" in said for said in running._setup.warn.said)
    kit.wait_rows(running, 30, sink="out")
    kit.kill(running, "totals[0]")
    kit.wait_recovered(running, 1)
    all_the_rest(kit, tmp_path)
    result = running.wait(300)
    assert result.is_complete
    assert 0 < before < ROWS
    delivered = sorted((row["key"], row["total"]) for row in result.table("out").to_pylist())
    assert delivered == due(kit)
    table = spark.read.format("clonos").load(str(tmp_path / "table")).collect()
    assert sorted((row["key"], row["total"]) for row in table) == due(kit)
    with pytest.raises(CannotRewind, match="is complete"):
        made().rewind(at="oldest")
    names = Counter(line.split(" ", 1)[0] for line in (tmp_path / "bank").read_text().splitlines())
    about: dict[str, str] = {}
    for line in (tmp_path / "bank").read_text().splitlines():
        key, row = line.split(" ", 1)
        assert about.setdefault(key, row) == row, "a key names one row for ever"
    assert len(names) > ROWS, "what came since is charged again, under other names"


def test_a_section_goes_back_and_nobody_is_charged_again(kit, spark, tmp_path, made, capsys):
    running = made().start(spark)
    kit.wait_rows(running, 120, sink="out")
    more(tmp_path)
    kit.wait_rows(running, 120, sink="out")
    kit.wait_for(lambda: running.last_progress.history.points >= 4)
    assert running.stop(settle="60 seconds")
    checkpoint = str(tmp_path / "checkpoint")
    points = points_of(capsys, tmp_path / "checkpoint")
    bank = (tmp_path / "bank").read_text()
    with pytest.raises(CannotRewind, match="no operator 'score'"):
        made().rewind(at=points[1], section="score")
    would = made().rewind(at=points[1], section="out", dry_run=True)  # totals and table stay
    assert would.again["out"] > 0
    assert all(lane.newest == lane.kept for lane in would.lanes if lane.sink == "table")
    would = made().rewind(at=points[1], section="totals", dry_run=True)
    assert "a section of the job would go back" in str(would)
    assert would.again["totals"] > 0
    assert not would.rows, "no source is read again"
    source = (tmp_path / "in.csv").read_text()
    (tmp_path / "in.csv").write_text(source.replace(",1", ",2"))
    with pytest.raises(CannotRewind, match="cannot be made again"):
        made().rewind(at=points[1], section="totals", check_sources=False)
    (tmp_path / "in.csv").write_text(source)
    done = made().rewind(at=points[1], section="totals", outputs="supersede")
    assert done.again == would.again
    assert re.search(r"\d+ rows come to totals once more", str(done))
    assert all(lane.newest > lane.kept for lane in done.lanes)
    assert main(["history", checkpoint]) == 0
    assert f"totals, out, table went back to point {points[1]}" in capsys.readouterr().out
    running = made(2000.0).start(spark)
    assert any(said.startswith("of the job, totals") for said in running._setup.warn.said)
    kit.wait_rows(running, 30, sink="out")
    kit.kill(running, "totals[1]")
    kit.wait_recovered(running, 1)
    all_the_rest(kit, tmp_path)
    result = running.wait(300)
    delivered = sorted((row["key"], row["total"]) for row in result.table("out").to_pylist())
    assert delivered == due(kit)
    table = spark.read.format("clonos").load(str(tmp_path / "table")).collect()
    assert sorted((row["key"], row["total"]) for row in table) == due(kit)
    lines = (tmp_path / "bank").read_text()
    assert lines.startswith(bank)
    keys = Counter(line.split(" ", 1)[0] for line in lines.splitlines())
    assert len(keys) == ROWS, "what was charged before is not charged again"
