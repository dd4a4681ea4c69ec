"""Functions in Python over Nexmark's bids, here and in PySpark's Structured Streaming.

The same function, as each engine runs it best: of a value (``with_column`` here; a ``udf``, pickled
and with Arrow, there), of a row (``map``; a ``udf`` of a struct), of a batch (``map_batches``;
``pandas_udf`` and ``mapInArrow``), and with state per key (a ``Process``; ``transformWithState``
row by row and ``transformWithStateInPandas``).
Both read the same files and drop their results where they come out; sessions of the two
alternate. Ours is exactly once, logs travel all the way.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import clonos
from clonos_bench import run
from clonos_bench.gates import Ran, gated, timed
from clonos_bench.nexmark import Generator, side_input
from clonos_bench.nexmark.parts import files
from clonos_bench.nexmark.parts import spark as nexmark_spark
from clonos_bench.nexmark.parts.overhead import VARIANTS, Query, count_results
from clonos_bench.nexmark.parts.spark_queries import Streams
from clonos_bench.nexmark.queries import Auctions
from clonos_bench.nexmark.source import SIDE_ROWS
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import percentile

AIM: Final = Aim(5.0, at_least=True)
"""Times as fast as PySpark's best way."""

COUNTED: Final = "bidder long, auction long, nth long"
_BID: Final = "auction long, bidder long, price long, date_time timestamp, extra string"
_VALUES: Final = side_input().column("value")
_BY_KEY: Final = dict(enumerate(_VALUES.to_pylist()))


# --- the functions --------------------------------------------------------------------------------


def euros(price: int) -> int:
    """Query 1, of one value."""
    return price * 89 // 100


def value_of(bidder: int) -> str:
    """Query 13, of one value."""
    return str(_BY_KEY[bidder % SIDE_ROWS])


def in_euros_by_row(row: Any) -> tuple[Any, ...]:
    """Query 1, of a row."""
    return row.auction, row.bidder, row.price * 89 // 100, row.date_time, row.extra


def enriched_by_row(row: Any) -> tuple[Any, ...]:
    """Query 13, of a row."""
    return row.auction, row.bidder, row.price, row.date_time, value_of(row.bidder)


def enriched(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Query 13, of a batch: bids with a value out of the side input."""
    bidder = batch.column("bidder").to_numpy()
    value = _VALUES.take(pa.array(bidder % SIDE_ROWS))
    names = ["auction", "bidder", "price", "date_time"]
    columns = [*(batch.column(name) for name in names), value]
    return pa.RecordBatch.from_arrays(columns, [*names, "extra"])


def in_euros(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Query 1, of a batch."""
    price = pc.divide(pc.multiply(batch.column("price"), 89), 100)
    at = batch.schema.get_field_index("price")
    return batch.set_column(at, batch.schema.field(at), price)


class Count(clonos.Process):
    """Numbers the bids of each bidder."""

    def open(self, ctx: clonos.ProcessContext) -> None:
        self._count = ctx.state("count", "long")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> list[tuple[int, int, int]]:
        nth = (self._count.get() or 0) + 1
        self._count.set(nth)
        return [(row.bidder, row.auction, nth)]


def counted(house: Auctions) -> clonos.Stream:
    """Every bid with its number among its bidder's: a function with state, row by row."""
    bids = house.bids.select("bidder", "auction")
    return bids.key_by("bidder").process(Count(), COUNTED, name="count")


# --- the same in PySpark --------------------------------------------------------------------------

Spark = Callable[[Streams], Any]


def _udf(
    function: Callable[[int], Any], returns: str, column: str, target: str, arrow: str
) -> Spark:
    """The function of one column, value by value, pickled or with Arrow."""

    def query(stream: Streams) -> Any:
        from pyspark.sql.functions import udf

        applied = udf(function, returns, useArrow=arrow == "Arrow")
        return stream("bid").withColumn(target, applied(column))

    return query


def _row_udf(function: Callable[[Any], tuple[Any, ...]], arrow: str) -> Spark:
    """The function of a whole row."""

    def query(stream: Streams) -> Any:
        from pyspark.sql.functions import struct, udf

        applied = udf(function, _BID, useArrow=arrow == "Arrow")
        bids = stream("bid")
        return bids.select(applied(struct(*bids.columns)).alias("row")).select("row.*")

    return query


def _pandas_euros(stream: Streams) -> Any:
    from pyspark.sql.pandas.functions import pandas_udf

    make: Any = pandas_udf  # its types ask for the kind of function even where there is a default
    applied = make(lambda price: price * 89 // 100, "long")
    return stream("bid").withColumn("price", applied("price"))


def _pandas_value(stream: Streams) -> Any:
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    values = np.array(_VALUES.to_pylist())
    make: Any = pandas_udf  # see above
    # Without annotations: PySpark reads them, and those of this module are strings.
    applied = make(lambda bidder: pd.Series(values[bidder.to_numpy() % SIDE_ROWS]), "string")
    return stream("bid").withColumn("extra", applied("bidder"))


def _in_arrow(function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Spark:
    def batches(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(function, rows)

    return lambda stream: stream("bid").mapInArrow(batches, _BID)


def _counted_rows(stream: Streams) -> Any:
    from clonos_bench.nexmark.parts.processors import CountRows

    grouped = stream("bid").select("bidder", "auction").groupBy("bidder")
    return grouped.transformWithState(CountRows(), COUNTED, "Append", "None")


def _counted_pandas(stream: Streams) -> Any:
    from clonos_bench.nexmark.parts.processors import CountFrames

    grouped = stream("bid").select("bidder", "auction").groupBy("bidder")
    return grouped.transformWithStateInPandas(CountFrames(), COUNTED, "Append", "None")


@dataclass(frozen=True)
class Case:
    """A function, here and there; ``theirs`` by way. ``share``: of the events, if it is slow."""

    ours: Query
    theirs: Mapping[str, Spark]
    share: float = 1.0


_STATE_SHARE: Final = 0.1
_HOW: Final = ("pickled", "Arrow")


def _of_rows(function: Callable[[Any], tuple[Any, ...]]) -> Case:
    theirs = {f"udf of a struct, {how}": _row_udf(function, how) for how in _HOW}
    return Case(lambda house: house.bids.map(function, _BID, name="mapped"), theirs)


def _of_values(function: Callable[[int], Any], column: str, target: str, returns: str) -> Case:
    theirs = {f"udf, {how}": _udf(function, returns, column, target, how) for how in _HOW}
    return Case(lambda house: house.bids.with_column(target, function, column), theirs)


CASES: Final[Mapping[str, Case]] = {
    "q1 by value": _of_values(euros, "price", "price", "long"),
    "q1 by row": _of_rows(in_euros_by_row),
    "q1 by batch": Case(
        lambda house: house.bids.map_batches(in_euros, name="q1"),
        {"pandas_udf": _pandas_euros, "mapInArrow": _in_arrow(in_euros)},
    ),
    "q13 by value": _of_values(value_of, "bidder", "extra", "string"),
    "q13 by row": _of_rows(enriched_by_row),
    "q13 by batch": Case(
        lambda house: house.bids.map_batches(enriched, _BID, name="q13"),
        {"pandas_udf": _pandas_value, "mapInArrow": _in_arrow(enriched)},
    ),
    "state by row": Case(
        counted,
        {"transformWithState": _counted_rows, "transformWithStateInPandas": _counted_pandas},
        share=_STATE_SHARE,
    ),
}


# --- measuring ------------------------------------------------------------------------------------


def measure(chosen: object, arguments: argparse.Namespace, out: Path) -> Report:
    """Every function in both engines, session after session."""
    del chosen, out
    title = f"Functions in Python, {arguments.events:,} events"
    columns = ("", "ours, events/s", "CPU", "PySpark, events/s", "CPU", "times as fast")
    report = Report("functions", title, (*columns, "times less CPU", "target"))
    ours: dict[str, list[Ran]] = {name: [] for name in CASES}
    theirs: dict[tuple[str, str], list[Ran]] = {}
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        folders = {share: Path(scratch) / str(share) for share in (1.0, _STATE_SHARE)}
        for share, folder in folders.items():
            folder.mkdir()
            files.write(folder, Generator(round(arguments.events * share)))
        for _ in range(arguments.runs):
            _run_ours(ours, arguments, folders)
            _run_theirs(theirs, arguments, folders)
    for name, case in CASES.items():
        events = round(arguments.events * case.share)
        wall, cpu = _median(ours[name])
        found = {way: _median(theirs[name, way]) for way in case.theirs}
        fastest = min(found.values())[0]
        for way, (spark_wall, spark_cpu) in found.items():
            times = spark_wall / wall
            aim = f"{AIM}: {AIM.judge(times)}" if spark_wall == fastest else ""
            rates = [f"{events / seconds:,.0f}" for seconds in (wall, spark_wall)]
            cpus = [f"{used / events * 1e6:.2f}" for used in (cpu, spark_cpu)]
            line = (rates[0], cpus[0], rates[1], cpus[1], f"{times:.1f}", f"{spark_cpu / cpu:.1f}")
            report.add(f"{name}; {way}", *line, aim)
    report.notes.append(
        f"median of {arguments.runs} runs, each behind one that does not count; with state a tenth "
        "of the events; CPU: seconds of the whole machine per million events; the target is for "
        "PySpark's fastest way"
    )
    report.data = {
        "ours": ours,
        "theirs": {f"{name}; {way}": used for (name, way), used in theirs.items()},
    }
    return report


def _median(runs: list[Ran]) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    return percentile([r.wall_s for r in runs], 50), percentile([r.cpu_s for r in runs], 50)


def _run_ours(done: dict[str, list[Ran]], arguments: Any, folders: Mapping[float, Path]) -> None:
    gate = folders[1.0] / "go"

    def job_of(case: Case) -> clonos.Job:
        job = VARIANTS["full"].job("functions", arguments.parallelism, arguments.checkpoint_ms)

        def source(kind: str) -> Any:
            return gated(files.source(folders[case.share], kind), gate)

        count_results(case.ours(Auctions(job, arguments.events, source=source)))
        return job

    slots = max(job_of(case).cores() for case in CASES.values())
    with run.session(f"local[{slots}]") as spark:
        for name, case in CASES.items():
            timed(job_of(case), spark, gate)
            done[name].append(timed(job_of(case), spark, gate))


def _run_theirs(
    done: dict[tuple[str, str], list[Ran]], arguments: Any, folders: Mapping[float, Path]
) -> None:
    with nexmark_spark.session(arguments.parallelism) as spark:
        for name, case in CASES.items():
            for way, query in case.theirs.items():
                nexmark_spark.run_query(spark, query, folders[_STATE_SHARE], ends=False)
                ran = nexmark_spark.run_query(spark, query, folders[case.share], ends=False)
                done.setdefault((name, way), []).append(ran)
