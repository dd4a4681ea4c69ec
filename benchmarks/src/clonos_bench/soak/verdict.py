"""What was delivered, against the input and what the service wrote down: by Spark SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clonos_bench.soak.job import DEAR

FAULTS: Final = {
    "rows lost": """
        select {rows} - count(distinct id) from {answers} where id >= 0 and id < {rows}""",
    "rows that are none": "select count(*) from {answers} where id < 0 or id >= {rows}",
    "rows repeated": "select count(*) - count(distinct id) from {answers}",
    "answers that the service did not give": """
        select count(*) from {answers} left anti join {journal} using (id, nonce, rate)""",
    "customers numbered wrongly": """
        select count(*) from (
          select customer from {answers} group by customer
          having min(seen) <> 1 or max(seen) <> count(*) or count(distinct seen) <> count(*))""",
    "answers that differ between two sinks": """
        select count(*) from (
          (select * from {answers} where rate >= {least} except all select * from {dear})
          union all
          (select * from {dear} except all select * from {answers} where rate >= {least}))""",
    "merchants whose bills are lost or repeated": """
        select count(*) from (
          select merchant from {bills} group by merchant
          having min(number) <> 1 or max(number) <> count(*) or count(distinct number) <> count(*))
        """,
    "merchants whose bills are wrong": """
        select count(*) from
          (select merchant, count(*) as n, sum(rate) as sum from {answers} group by merchant) as a
          full join
          (select merchant, sum(rows) as n, sum(total) as sum from {bills} group by merchant) as b
          using (merchant)
        where not (a.n <=> b.n and a.sum <=> b.sum)""",
}
"""A query for each; it counts how many."""
_ASKED_AGAIN: Final = "select count(*) - count(distinct id) from {journal}"


@dataclass(frozen=True)
class Verdict:
    """How many faults there are of each kind, and how often a row was asked about for nothing.

    The latter is no fault: a process that dies between an answer and its log asks again.
    """

    faults: dict[str, int]
    asked_again: int


def judge(
    answers: Any,
    dear: Any,
    bills: Any,
    journal: Any,
    rows: int,
    kinds: Iterable[str] = tuple(FAULTS),
) -> Verdict:
    """Judge the output of the three sinks, as DataFrames.

    Parameters
    ----------
    journal
        See :func:`answered`.
    rows
        Of the input; their ids are 0, 1, 2, ...
    kinds
        Of :data:`FAULTS`: what is looked for.
    """
    frames = {"answers": answers, "dear": dear, "bills": bills, "journal": journal}

    def number(query: str) -> int:
        found = answers.sparkSession.sql(query, **frames, rows=rows, least=DEAR)
        return int(found.first()[0])

    faults = {name: number(FAULTS[name]) for name in kinds}
    return Verdict(faults, number(_ASKED_AGAIN))


def answered(spark: Any, path: Path) -> Any:
    """What the service has answered: ``(nonce, id, rate)``."""
    lines = spark.read.schema("ids array<long>, nonce long, rates array<long>").json(str(path))
    each = lines.selectExpr("nonce", "explode(arrays_zip(ids, rates)) as row")
    return each.selectExpr("nonce", "row.ids as id", "row.rates as rate")
