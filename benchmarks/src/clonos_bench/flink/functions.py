"""Functions in Python in PyFlink: a process of Flink's own Python, started by its path.

Arguments: Flink's settings, ``key=value``. Each line of the input is a job in JSON: ``tables``
(statements separated by semicolons), ``case`` and ``way``, a key of :data:`CASES`, and the
``mode`` of Python workers. A few rows are sent ahead: what a worker does for its first rows is over
when the gate (``Gate.java``) opens. The answers are those of ``Driver.java``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

SIDE_ROWS = 500


def euros(price: int) -> int:
    """Query 1, of one value; or of a series of values."""
    return price * 89 // 100


def in_sql(tables: Any, of: str, way: str) -> Any:
    """Queries 1 and 13: a function of one column."""
    import pandas as pd
    from pyflink.table import DataTypes
    from pyflink.table.udf import udf

    values = [str(i) for i in range(SIDE_ROWS)]
    series = pd.Series(values)
    kind: dict[str, Any] = {"func_type": "pandas"} if way == "pandas" else {}

    def value(bidder: Any) -> Any:
        if way == "pandas":
            return series.take(bidder % SIDE_ROWS).reset_index(drop=True)
        return values[bidder % SIDE_ROWS]

    if of == "q1":
        function = udf(euros, result_type=DataTypes.BIGINT(), **kind)
        chosen = "auction, bidder, f(price), date_time, extra"
    else:
        function = udf(value, result_type=DataTypes.STRING(), **kind)
        chosen = "auction, bidder, price, date_time, f(bidder)"
    tables.create_temporary_function("f", function)
    return tables.sql_query(f"SELECT {chosen} FROM bid").execute_insert("output")


def with_state(tables: Any, of: str, way: str) -> Any:
    """Numbers the bids of each bidder: a keyed process function of the DataStream API."""
    del of, way
    from pyflink.common import Row, Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    class Count(KeyedProcessFunction):  # type: ignore[misc]
        def open(self, context: Any) -> None:
            self._count = context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def process_element(self, row: Any, context: Any) -> Any:
            nth = (self._count.value() or 0) + 1
            self._count.update(nth)
            yield Row(row[0], row[1], nth)

    bids = tables.to_data_stream(tables.sql_query("SELECT bidder, auction FROM bid"))
    kind = Types.ROW_NAMED(["bidder", "auction", "nth"], [Types.LONG(), Types.LONG(), Types.LONG()])
    counted = bids.key_by(lambda row: row[0], key_type=Types.LONG()).process(Count(), kind)
    return tables.from_data_stream(counted).execute_insert("output")


CASES = {"q1": in_sql, "q13": in_sql, "state": with_state}


def run(job: dict[str, Any], settings: dict[str, str]) -> None:
    """One job from begin to end."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.java_gateway import get_gateway
    from pyflink.table import StreamTableEnvironment

    gate = get_gateway().jvm.nexmark.Gate
    gate.close()
    configuration = Configuration()
    for key, value in {**settings, "python.execution-mode": job["mode"]}.items():
        configuration.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    for statement in job["tables"].split(";"):
        tables.execute_sql(statement)
    result = CASES[job["case"]](tables, job["case"], job["way"])
    sinks = int(settings["parallelism.default"])
    client = result.get_job_client()._j_job_client  # noqa: SLF001 - Java's own is what Java takes
    say(gate.run(client, sinks))


def say(answer: str) -> None:
    """To whoever has given the job."""
    print(answer, flush=True)


def main() -> None:
    """Run the jobs that come in."""
    settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
    for line in sys.stdin:
        try:
            run(json.loads(line), settings)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side is told
            cause = str(error).rpartition("Caused by: ")[2]  # the deepest
            say("failed " + " ".join(cause.split())[:1000])


if __name__ == "__main__":
    main()
