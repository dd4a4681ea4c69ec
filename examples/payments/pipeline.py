"""Spark -> our stretch -> Spark, in one application: this is all that one writes.

Structured Streaming reads payments (JSON lines) from a folder and Spark SQL cleans them; a stretch
of Clonos asks a service, batch by batch, which merchants are suspended at this moment; the answers
go back as a streaming DataFrame into a windowed aggregation that Spark writes to Parquet. The
stretch runs in tasks of its own or, with ``execution="spark"``, as a streaming query of Spark's.

``watch.py`` starts this file, kills what it is made of, starts it again, and judges the result. The
folder that it is given has ``in`` (the payments) and gets everything else; an empty file ``closed``
in it says that no more payments come.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import clonos
from clonos.sinks.data_source import end, finish
from clonos.spark.session import get_or_create
from examples.demo.client import check_words

RAW = "id long, merchant string, cents long, time timestamp"
CLEAN = """
    select id, lower(trim(merchant)) as merchant, cents, time from {payments}
    where cents > 0 and trim(merchant) rlike '^[A-Za-z]+$'"""
JUDGED = "merchant string, cents long, time timestamp, nonce string, suspended boolean"
TOTALS = """
    select window.start as window_start, window.end as window_end, merchant, nonce,
           any_value(suspended) as suspended, count(*) as payments, sum(cents) as cents
    from {judged} group by window(time, '10 seconds'), merchant, nonce"""


class Ask:
    """Which merchants of a batch are suspended: one call, whose answer is never asked for again."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, batch: pa.RecordBatch, ctx: clonos.Context) -> pa.RecordBatch:
        merchants = batch.column("merchant")
        asked = merchants.unique().to_pylist()
        key = ctx.idempotency_key(batch.column("id").to_pylist())  # what the call is about
        answer = ctx.call(check_words, self.url, asked, key)
        suspended = pc.is_in(merchants, value_set=pa.array(answer["banned"], pa.string()))
        nonces = pa.array([answer["nonce"]] * batch.num_rows)
        kept = ["merchant", "cents", "time"]
        columns = [*map(batch.column, kept), nonces, suspended]
        return pa.RecordBatch.from_arrays(columns, names=[*kept, "nonce", "suspended"])


def start(spark: Any, folder: Path, url: str, execution: Any) -> tuple[Any, Any]:
    """The stretch in the middle, and the query behind it."""
    payments = spark.readStream.schema(RAW).option("maxFilesPerTrigger", 4).json(f"{folder}/in")
    clean = spark.sql(CLEAN, payments=payments)

    job = clonos.Job("payments", parallelism=2, checkpoint_dir=f"{folder}/job")
    judged = job.source(clean, name="clean").key_by("merchant").map_batches(
        Ask(url), JUDGED, name="ask"
    )  # fmt: skip
    judged.sink(clonos.sinks.table(f"{folder}/judged"), name="judged")
    running = job.start(spark, execution=execution)

    totals = spark.sql(TOTALS, judged=spark.readStream.format("clonos").load(f"{folder}/judged"))
    query = (
        totals.writeStream.outputMode("complete")
        .foreachBatch(lambda frame, _: frame.write.mode("overwrite").parquet(f"{folder}/totals"))
        .option("checkpointLocation", f"{folder}/query")
        .start()
    )
    return running, query


def close(spark: Any, folder: Path) -> None:
    """When no more payments come: let Spark read those that are there, and end our input."""
    while not (folder / "closed").exists():
        time.sleep(0.1)
    for query in spark.streams.active:
        if query.name in {"payments: clean", "payments: judged"}:  # of either execution
            query.processAllAvailable()
            query.stop()


def tell(running: Any, folder: Path) -> None:
    """Who runs what, for whoever wants to kill it."""
    if not isinstance(running, clonos.RunningJob):  # Spark's own tasks, which come and go
        files = sum(1 for _ in (folder / "judged").glob("_batches/*/*.json"))
        print(json.dumps({"slots": [], "quiet": True, "rows": files}), flush=True)
        return
    slots = [[name, s.pid, s.executor_pid] for s in running.slots() for name in s.runs]
    kept = {name for slot in running.slots() for name in slot.keeps}
    is_quiet = all(t.phase == "live" and t.name in kept for t in running.tasks())
    rows = running.delivered["judged"]
    print(json.dumps({"slots": slots, "quiet": is_quiet, "rows": rows}), flush=True)


def main(folder: Path, url: str, master: str, execution: str = "tasks") -> None:
    """Start or go on, until the input is closed and everything is written."""
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    spark = get_or_create(master, "payments", config=settings)
    running, query = start(spark, folder, url, execution)
    threading.Thread(target=close, args=(spark, folder), daemon=True).start()
    while running.is_running and query.isActive:
        tell(running, folder)
        time.sleep(0.2)
    if running.is_running:
        query.awaitTermination()  # raises why it has failed
    running.wait()
    if execution == "spark":
        end(f"{folder}/judged")  # a query would go on some day; this one does not
    finish(query, f"{folder}/judged")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
