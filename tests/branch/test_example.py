"""The example: a prompt is tried on the past of a job that runs, and adopted, while workers die."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

import clonos
from clonos.replay import NothingToReplay
from examples.fraud import pipeline
from examples.fraud.__main__ import Options, run
from examples.fraud.page import write
from examples.fraud.payments import day

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.soak
def test_a_prompt_is_tried_on_the_past_and_adopted_while_workers_die(shared_spark, tmp_path):
    said: list[str] = []
    options = Options(payments=240, seconds=8.0, latency_ms=20.0)
    told = run(shared_spark, tmp_path, options, said.append)
    assert not [line for line in told.lines if not line.ok]
    assert sum(line.wanted is not None for line in told.lines) == 13
    assert sum("kill -9" in line for line in said) == 2
    branch = told.branch
    found = branch.compare("scored", keys=["id"])
    frame = found.dataframe(shared_spark)
    assert frame.count() == found.changes
    for row in found.table.to_pylist():
        if row["change"] == "changed":  # no other prompt, no other score
            assert row["prompt_a"] != row["prompt_b"]
    (line,) = (one for one in branch.bill.to_pylist() if one["operator"] == "judge")
    assert line["matched"] + line["live"] >= found.rows_b
    write(tmp_path / "page.html", told.seen, branch, told.lines)
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "FAULT" not in page.replace(".FAULT{", "")
    assert len(day(240)) == len(told.seen.rows)


def test_unchanged_code_asks_nobody(shared_spark, tmp_path):
    """... and leaves no trace."""
    midnight = datetime(2030, 5, 4, tzinfo=timezone.utc)
    rows = [
        (one.id, midnight + timedelta(seconds=one.at_s), one.card, one.cents, one.country)
        for one in day(60)
    ]
    source = clonos.sources.from_batches([rows], pipeline.ROWS)
    job = pipeline.build(source, Silent(), str(tmp_path / "checkpoint"))
    job.run(shared_spark, timeout_s=300)
    before = contents(tmp_path)
    unchanged = job.branch(at="oldest", replace={})
    assert unchanged.compare("scored").changes == 0
    assert unchanged.rows("scored").num_rows == 60
    assert unchanged.calls == 0
    with pytest.raises(NothingToReplay, match="no point at or before"):
        job.branch(at="1999-12-31", replace={})
    assert contents(tmp_path) == before


class Silent(pipeline.World):
    """A model in the worker itself, which is sure of nothing."""

    def __init__(self):
        super().__init__("")

    def ask(self, prompt):
        return {"score": len(prompt) % 100 / 100, "tokens": 1, "request": 0}

    def block(self, id, card, *, call):  # noqa: A002 - a column
        pass


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
