"""Events enriched by a slow, paid model while workers are killed: what that costs, and need not.

    python examples/model_service/enrich.py

runs the same streaming job twice against the same model service, as it is and with causal services,
kills a Python worker in every batch, and prints the bill of each run by the service's own journal.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext

from clonos import causal
from clonos.spark.session import get_or_create

EVENTS_PER_BATCH = 100
BATCHES = 4


def ask_model(url: str, text: str) -> dict[str, Any]:
    """One call of the model: slow, not free, and never twice the same."""
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(url + "/score", body, timeout=10) as response:  # noqa: S310 - ours
        answer: dict[str, Any] = json.load(response)
        return answer


class Enrich:
    """Scores a partition's events, and is killed once per batch when it has done most of them."""

    def __init__(self, ask: Any, url: str, marks: Path) -> None:
        self.ask, self.url, self.marks = ask, url, marks

    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for events in frames:
            texts = [f"event {value}" for value in events["value"]]
            answers = [self.ask(self.url, text) for text in texts]
            scores, labels = zip(*((a["score"], a["label"]) for a in answers), strict=True)
            yield pd.DataFrame({"text": texts, "score": scores, "label": labels})
        self.kill_once()

    def kill_once(self) -> None:
        context = TaskContext.get()
        assert context is not None  # this runs in a task
        batch = context.getLocalProperty("streaming.sql.batchId")
        mark = self.marks / f"batch {batch} killed"
        if context.partitionId() == 0 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def run(spark: Any, ask: Any, url: str, scratch: Path, events: Path) -> None:
    """The job: enrich a stream of files, write each batch to a folder of its own."""

    def write(frame: Any, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(f"{scratch}/out/batch={batch_id}")

    scratch.mkdir()
    query = (
        spark.readStream.schema("value long")
        .option("maxFilesPerTrigger", 2)
        .json(str(events))
        .mapInPandas(Enrich(ask, url, scratch), "text string, score double, label string")
        .writeStream.foreachBatch(causal.exactly_once(write) if scratch.name == "causal" else write)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def make_events(folder: Path) -> None:
    """Two files per batch."""
    folder.mkdir()
    each = EVENTS_PER_BATCH // 2
    for number in range(2 * BATCHES):
        lines = (json.dumps({"value": number * each + i}) + "\n" for i in range(each))
        (folder / f"{number}.json").write_text("".join(lines))


def bill(journal: Path) -> tuple[int, int, float]:
    """Calls, calls for events that had been scored before, and cents."""
    calls: Counter[str] = Counter()
    cents = 0.0
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        calls[entry["text"]] += 1
        cents += entry["cents"]
    return sum(calls.values()), sum(calls.values()) - len(calls), cents


def main() -> None:
    """Both runs, and their bills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of the model")
    options = parser.parse_args()
    spark = get_or_create("local[2,4]", "model service")
    spark.sparkContext.setLogLevel("OFF")  # Spark prints a page about every worker that dies
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        make_events(scratch / "events")
        log = causal.start(spark, scratch / "log")
        for name in ("plain", "causal"):
            journal = scratch / f"{name} journal"
            ask = causal.service(ask_model) if name == "causal" else ask_model
            service = [sys.executable, str(Path(__file__).with_name("service.py"))]
            service += ["--journal", str(journal), "--latency-ms", str(options.latency_ms)]
            with subprocess.Popen(service, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                run(spark, ask, url, scratch / name, scratch / "events")
                process.kill()
            calls, again, cents = bill(journal)
            print(
                f"{name:6}  {BATCHES * EVENTS_PER_BATCH} events, {BATCHES} workers killed: "
                f"{calls} calls, {again} of them asked again, {cents:.1f} cents"
            )
        log.stop()
    spark.stop()


if __name__ == "__main__":
    main()
