"""Fixtures of the slots' adapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.slot import Slot


@pytest.fixture
def slot() -> Iterator[Slot]:
    slot = Slot()
    yield slot
    slot.runner.close()
