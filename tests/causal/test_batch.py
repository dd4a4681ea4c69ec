"""A batch job on real executors, killed in mid-batch: first as it is, then with causal services.

The same functions run both times; what is delivered is written down by the job itself as it happens,
and what was asked is in the service's own journal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle

from clonos import causal
from clonos.spark.session import get_or_create

from .conftest import model_service

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = 60
PARTITIONS = 2


@pytest.fixture(scope="module")
def spark(new_jvm):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.stage.maxConsecutiveAttempts": "8",
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
        partition = TaskContext.get().partitionId()
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


def dawdle(url: str, text: str, pause_s: float) -> float:
    time.sleep(pause_s)
    return score(url, text)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_speculative_copy(spark, tmp_path, is_causal):
    """Both attempts run at once: the copy asks again, or follows the one that has the log."""
    ask = causal.service(dawdle) if is_causal else dawdle
    copies = tmp_path / "copies"
    copies.mkdir()

    def slowly(batches):
        context = TaskContext.get()
        slow = context.partitionId() == 1
        for batch in batches:
            column = batch.column("text").to_pylist()
            (copies / f"{context.partitionId()}-{context.attemptNumber()}").touch()
            pause_s = 0.15 if slow and context.attemptNumber() == 0 else 0.0
            if is_causal:
                scores = [ask.keyed(text)(url, text, 0.15 if slow else 0.0) for text in column]
            else:
                scores = [ask(url, text, pause_s) for text in column]
            yield batch.append_column("score", pa.array(scores, pa.float64()))

    with model_service() as model:
        url = model.url
        log = causal.start(spark, tmp_path / "log", run="copies") if is_causal else None
        rows = texts(spark).mapInArrow(slowly, "text string, score double").collect()
        if log is not None:
            log.stop()
        bill = model.bill()
    assert (copies / "1-1").exists()  # there was one
    assert len(rows) == ROWS
    if is_causal:
        assert Counter(bill.values()) == {1: ROWS}
    else:
        assert max(bill.values()) > 1
