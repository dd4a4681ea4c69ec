"""A driver that is killed between sink and commit: run as a process, twice, by a test.

Two queries do the same thing, one as it is, one with causal services. Both have delivered batch 1
when the driver (its JVM and itself) is killed; the second run goes on from the checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from clonos import causal
from clonos.spark.session import get_or_create

DEADLY, LAST = 1, 3


class Sinks:
    """Delivers each batch to two sinks; in the first run the driver dies after batch 1."""

    def __init__(self, folder, kind, both):
        self.folder, self.kind, self.both = folder, kind, both

    def __call__(self, frame, batch_id):
        self.deliver("one", frame, batch_id)
        self.deliver("two", frame, batch_id)
        if self.kind == "causal":
            stamp = causal.clock.now_ms()
            causal.settle()
            with (self.folder / "stamps").open("a") as out:
                out.write(f"{batch_id} {stamp}\n")
        if batch_id == DEADLY and not (self.folder / "killed").exists():
            self.both.wait(60)
            (self.folder / "killed").touch()
            gateway: Any = SparkContext._gateway
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def deliver(self, sink, frame, batch_id):
        rows = [{"batch": batch_id, **row.asDict()} for row in frame.collect()]
        with (self.folder / f"{self.kind} {sink}").open("a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


def scored_by(ask, url, kind):
    def enrich(batches):
        for batch in batches:
            texts = [f"{kind} {value}" for value in batch.column("value").to_pylist()]
            scores = [ask(url, text) for text in texts]
            yield pa.RecordBatch.from_pydict({"text": texts, "score": scores})

    return enrich


def score(url, text):
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(url + "/score", body, timeout=30) as response:
        return json.load(response)["score"]


def start(spark, folder, kind, enrich, write):
    frame = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=6, numPartitions=2, startTimestamp=1000)
        .load()
        .mapInArrow(enrich, "text string, score double")
    )
    return (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / f"checkpoint {kind}"))
        .start()
    )


def main(folder, url):
    spark = get_or_create("local[2]", "causal streaming")
    log = causal.start(spark, folder / "log")
    both = threading.Barrier(2)
    plain, logged = Sinks(folder, "plain", both), Sinks(folder, "causal", both)
    ask = causal.service(score)
    queries = [
        start(spark, folder, "plain", scored_by(score, url, "plain"), plain),
        start(spark, folder, "causal", scored_by(ask, url, "causal"), causal.exactly_once(logged)),
    ]
    held_max = 0
    while any((query.lastProgress or {"batchId": -1})["batchId"] < LAST for query in queries):
        for query in queries:
            query.awaitTermination(0.1)
            if query.exception() is not None:
                raise query.exception()
        held_max = max(held_max, log.nbytes)
    for query in queries:
        query.stop()
    sys.stdout.write(json.dumps({"held_max": held_max}) + "\n")
    log.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
