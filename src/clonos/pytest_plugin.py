"""A fixture for pytest: a bundle of a job's past as a test.

pytest finds it by itself where clonos is installed. Nothing else is imported before a test asks for
the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from clonos.testing.past import PastRun


@pytest.fixture
def clonos_past(request: pytest.FixtureRequest) -> Callable[..., PastRun]:
    """``clonos_past(job, "night.clonos")`` is :func:`clonos.testing.run_past` with a file that lies
    beside the test's.
    """

    def past(job: Any, bundle: str | Path, **how: Any) -> PastRun:
        from clonos.testing import run_past

        return run_past(job, request.path.parent / bundle, **how)

    return past
