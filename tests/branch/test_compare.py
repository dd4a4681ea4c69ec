"""A difference as a DataFrame has the values and types that the rows have."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from clonos.branch.compare import compare

pytestmark = pytest.mark.spark

LARGE = 2**53
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("words", pa.list_(pa.string())),
        ("raw", pa.binary()),
    ]
)


def table(ids, more=0):
    noon, day = datetime(2030, 5, 4, 12, tzinfo=timezone.utc), date(2030, 5, 4)
    rest = (True, noon, day, Decimal("1.50"), ["a"], b"b")
    rows = [(i, LARGE + i + more, *rest) for i in ids]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


@pytest.mark.parametrize("keys", [["id"], None])
def test_all_differences(shared_spark, keys):
    found = compare("out", table([1, 2]), table([2, 3], more=1), keys)
    frame = found.dataframe(shared_spark)
    assert frame.count() == found.changes == (3 if keys else 4)
    assert {r["change"]: r["n_b" if keys else "n"] for r in frame.collect()}["only_b"] == LARGE + 4
    assert frame.toArrow().equals(found.table.cast(frame.toArrow().schema))


def test_no_difference(shared_spark):
    frame = compare("out", table([1]), table([1]), ["id"]).dataframe(shared_spark)
    assert frame.count() == 0
    assert dict(frame.dtypes)["n_a"] == "bigint"
