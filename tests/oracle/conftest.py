"""What the oracle's tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def spark(shared_spark):
    shared_spark.conf.set("spark.sql.session.timeZone", "UTC")
    shared_spark.conf.set("spark.sql.shuffle.partitions", "2")
    return shared_spark
