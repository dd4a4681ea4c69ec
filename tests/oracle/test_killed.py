"""Random programs as plans on two executors, of which workers and executors are killed.

The first batch of the sources kills the Python worker that has it, and the next attempt the
executor; the first batch behind the program kills another worker. The rows must be those of tasks
in memory, and of DuckDB where the program is written in SQL.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clonos.spark.session import get_or_create
from tests.lethal import Lethal
from tests.oracle.judges import Case, judge

pytestmark = [
    pytest.mark.soak,
    pytest.mark.usefixtures("new_jvm"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def cluster(new_jvm: None) -> Iterator[Any]:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # A task fails three times by our hand, and others of its executor with it.
        "spark.task.maxFailures": "10",
    }
    session = get_or_create("local-cluster[2,2,1024]", "oracle, killed", config=config)
    yield session
    session.stop()


def judge_killed(case: Case, cluster: Any, folder: Path) -> str:
    """What became of a program; of those that give rows, all is killed that was to be."""
    before = Lethal(folder / "before", {"worker": 1, "executor": 2})
    behind = Lethal(folder / "behind", {"worker": 1})
    case.lethal = (before, behind)
    became = judge(case, cluster, folder)
    if became == "equal":
        told = case.program.text
        assert before.killed == ["executor", "worker"], told
        assert behind.killed == ["worker"], told
    return became


def cases(*, streams: bool, kind: str | None, count: int) -> Iterator[Case]:
    """Programs; if of one kind, those that are written in SQL."""
    drawn = (Case(seed, streams=streams, kind=kind) for seed in itertools.count(3000))
    return itertools.islice((one for one in drawn if one.program.sql or kind is None), count)


@pytest.mark.parametrize("kind", ["window", "join", None])
@pytest.mark.parametrize("streams", [False, True], ids=["batch plan", "streaming plan"])
def test_the_rows_are_the_same(cluster, tmp_path, streams, kind):
    count = 4 if streams else 8
    found = Counter(
        judge_killed(case, cluster, tmp_path / str(case.seed))
        for case in cases(streams=streams, kind=kind, count=count)
    )
    assert found["equal"] >= count // 2, found
