"""A driver that is killed between sink and commit: run as a process, twice, by a test.

Two queries do the same thing, one as it is, one with causal services. Both have delivered batch 1 when
the driver (its JVM and itself) is killed; the second run goes on from the checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext

from clonos import causal
from clonos.spark.session import get_or_create

DEADLY, LAST = 1, 3

folder, url = Path(sys.argv[1]), sys.argv[2]
first_run = not (folder / "killed").exists()
delivered_deadly = threading.Barrier(2)


def score(text):
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(url + "/score", body, timeout=30) as response:
        return json.load(response)["score"]


def scored_by(ask, kind):
    def enrich(batches):
        for batch in batches:
            texts = [f"{kind} {value}" for value in batch.column("value").to_pylist()]
            scores = [ask(text) for text in texts]
            yield pa.RecordBatch.from_pydict({"text": texts, "score": scores})

    return enrich


def deliver(name, frame, batch_id):
    rows = [{"batch": batch_id, **row.asDict()} for row in frame.collect()]
    with (folder / name).open("a") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def die():
    (folder / "killed").touch()
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def sinks(kind):
    def write(frame, batch_id):
        deliver(f"{kind} one", frame, batch_id)
        deliver(f"{kind} two", frame, batch_id)
        if kind == "causal":
            stamp = causal.clock.now_ms()
            causal.settle()
            with (folder / "stamps").open("a") as out:
                out.write(f"{batch_id} {stamp}\n")
        if first_run and batch_id == DEADLY:
            delivered_deadly.wait(60)
            die()

    return write


spark = get_or_create("local[2]", "causal streaming")
log = causal.start(spark, folder / "log")


def start(kind, ask, write):
    frame = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=6, numPartitions=2, startTimestamp=1000)
        .load()
        .mapInArrow(scored_by(ask, kind), "text string, score double")
    )
    return (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / f"checkpoint {kind}"))
        .start()
    )


class Held:
    sizes: list[int] = []


queries = [
    start("plain", score, sinks("plain")),
    start("causal", causal.service(score), causal.exactly_once(sinks("causal"))),
]
while any((query.lastProgress or {"batchId": -1})["batchId"] < LAST for query in queries):
    for query in queries:
        query.awaitTermination(0.1)
        if query.exception() is not None:
            raise query.exception()
    Held.sizes.append(log.nbytes)
for query in queries:
    query.stop()
print(json.dumps({"held_max": max(Held.sizes)}))
log.stop()
spark.stop()
