"""What a canary reads of a job that runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.branch.live_log import LiveLog
from clonos.errors import OtherJob
from tests.branch.test_branch import mine


@pytest.mark.parametrize("change", [{"term": 2}, {"version": 1}])
def test_a_job_that_has_another_driver_may_have_other_functions(change, tmp_path):
    log = LiveLog(mine().compiled, str(tmp_path), None)
    now = {"term": 1, "version": 0}
    log._live = SimpleNamespace(now=lambda: (_keeper(now), None, now["version"]))  # type: ignore[assignment]
    log._now()
    log._now()
    now |= change
    with pytest.raises(OtherJob, match="another graph, or other functions"):
        log._now()


def _keeper(now: dict[str, int]) -> Any:
    return SimpleNamespace(term=now["term"])
