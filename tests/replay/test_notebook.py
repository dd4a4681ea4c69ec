"""Step by step, as in a notebook: with the state before and after, and as tables."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import clonos
from clonos.replay.steps import Step
from tests.branch.test_bundles import bundled, definition, my_job, simulated

DOCS = Path(__file__).parents[2] / "docs" / "replay.md"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    job = my_job()
    out, _ = bundled(job, simulated(job, 5), tmp_path_factory.mktemp("notebook"))
    return str(out)


def test_a_step_says_what_it_has_changed(path):
    with clonos.Replay(definition(), path) as replay:
        task, seen = replay["running[0]"], 0
        while True:
            before = task.state("running")
            step = replay.step("running[0]", state=True)
            if step is None:
                break
            after = task.state("running")
            changed = {k for k in {**before, **after} if before.get(k) != after.get(k)}
            assert step.after == {"running": {k: after[k] for k in changed if k in after}}
            assert step.before == {"running": {k: before[k] for k in changed if k in before}}
            seen += len(changed)
        assert seen
    with clonos.Replay(definition(), path) as replay:
        step = replay.step("running[0]")
        assert step is not None
        assert (step.before, step.after) == ({}, {}), "it was not asked for"


def test_a_step_is_shown_as_tables(path):
    with clonos.Replay(definition(), path) as replay:
        step = replay.step("running[0]", state=True)
        while step is not None and not step.after["running"]:
            step = replay.step("running[0]", state=True)
        assert step is not None
        page = step._repr_html_()
    assert page.startswith("<div><b>running[0] step ")
    for part in ("<caption>took", "<caption>state of running", "<th>before</th><th>after</th>"):
        assert part in page
    rows = pa.RecordBatch.from_pydict({"<b>": ["<script>" + "x" * 300] * 20})
    page = Step("a[0]", 1, True, "rows", took=(rows,))._repr_html_()
    assert "<script>" not in page
    assert "(the first 10 of 20)" in page
    assert "x" * 201 not in page
    assert "..." in page


def test_the_lines_of_the_documentation_run(path):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (block,) = [one for one in blocks if "state=True" in one]
    here = block.replace("night.clonos", path).replace("total", "running").replace("to=80", "to=3")
    names = {"clonos": clonos, "job": definition()}
    exec(here, names)
    step, replay = names["step"], names["replay"]
    assert isinstance(step, Step)
    assert step.position == 4
    assert isinstance(replay, clonos.Replay)
    assert replay.is_at_the_end
