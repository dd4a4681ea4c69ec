"""A batch job on real executors, killed in mid-batch: first as it is, then with causal services.

The same functions run both times; what is delivered is written down by the job itself as it
happens, and what was asked is in the service's own journal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle

from clonos import causal
from clonos.spark.session import get_or_create

from .conftest import model_service

pytestmark = pytest.mark.spark

ROWS = 60
PARTITIONS = 2


@pytest.fixture(scope="module")
def spark(new_jvm):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        "spark.stage.maxConsecutiveAttempts": "8",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "100ms",
    }
    session = get_or_create("local-cluster[2,1,1024]", "causal batch", config=settings)
    yield session
    session.stop()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def score(url: str, text: str) -> float:
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(url + "/score", body, timeout=30) as response:
        answer: float = json.load(response)["score"]
        return answer


def once(mark: Path) -> bool:
    """True for the first who asks."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_me(what: str) -> None:
    """kill -9 this Python worker, or the JVM of its executor."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(os.getpid() if what == "worker" else executor, signal.SIGKILL)
    time.sleep(10)


class Job:
    """Score rows, deliver them; somebody is killed after `deadly` deliveries of a partition."""

    def __init__(self, folder: Path, url: str, ask: Any, victim: str, deadly: int) -> None:
        self.folder, self.url, self.ask = folder, url, ask
        self.victim, self.deadly = victim, deadly

    def enrich(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = batch.column("text").to_pylist()
            scores = [self.ask(self.url, text) for text in texts]
            yield batch.append_column("score", pa.array(scores, pa.float64()))

    def deliver(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        seen = 0
        for batch in batches:
            for row in batch.to_pylist():
                with (self.folder / "delivered").open("a") as out:
                    out.write(json.dumps(row) + "\n")
                seen += 1
                if partition == 0 and seen == self.deadly and once(self.folder / "killed"):
                    kill_me(self.victim)
            yield batch

    def delivered(self) -> dict[str, set[float]]:
        contents = defaultdict(set)
        for line in (self.folder / "delivered").read_text().splitlines():
            row = json.loads(line)
            contents[row["text"]].add(row["score"])
        return contents


def texts(spark: Any) -> Any:
    return spark.range(ROWS, numPartitions=PARTITIONS).selectExpr("concat('text ', id) as text")


def run(spark: Any, job: Job, *, shuffle: bool) -> dict[str, float]:
    scored = texts(spark).mapInArrow(job.enrich, "text string, score double")
    if shuffle:  # what was scored lies in files of the executor that will be killed
        scored = scored.repartition(PARTITIONS, "text")
    rows = scored.mapInArrow(job.deliver, "text string, score double").collect()
    assert (job.folder / "killed").exists()
    return {row.text: row.score for row in rows}


KILLS = [("worker", False), ("executor", False), ("executor", True)]


@pytest.mark.soak
@pytest.mark.parametrize(("victim", "shuffle"), KILLS)
def test_without_causal_services_rows_change_and_calls_repeat(spark, tmp_path, victim, shuffle):
    with model_service() as model:
        job = Job(tmp_path, model.url, score, victim, deadly=15)
        run(spark, job, shuffle=shuffle)
        changed = [text for text, contents in job.delivered().items() if len(contents) > 1]
        repeated = [text for text, times in model.bill().items() if times > 1]
    assert len(changed) >= 10
    assert len(repeated) >= 15


@pytest.mark.parametrize(("victim", "shuffle"), KILLS)
def test_with_them_nothing_changes_and_nothing_is_asked_again(spark, tmp_path, victim, shuffle):
    with model_service() as model, causal.start(spark, tmp_path / "log", run="test"):
        job = Job(tmp_path, model.url, causal.service(score), victim, deadly=15)
        rows = run(spark, job, shuffle=shuffle)
        bill, delivered = model.bill(), job.delivered()
    assert {text: {score} for text, score in rows.items()} == delivered
    assert len(rows) == ROWS
    # What was asked and not sent when a process was killed had been used by nobody.
    unused = sum(bill.values()) - ROWS
    assert 0 <= unused <= 10
    used_twice = [text for text, times in bill.items() if times > 1 and text not in delivered]
    assert used_twice == []
