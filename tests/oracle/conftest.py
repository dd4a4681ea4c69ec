"""What the oracle's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clonos.spark.session import get_or_create


@pytest.fixture(scope="module")
def spark(new_jvm: None) -> Iterator[Any]:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
    }
    session = get_or_create("local[2]", config=config)
    yield session
    session.stop()
