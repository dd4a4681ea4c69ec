"""The switch interval is the user's when nothing of ours runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from clonos.runtime.interpreter import SWITCH_S, quick_switching


@pytest.fixture(autouse=True)
def users() -> Iterator[float]:
    """What the user has set."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_several_jobs_at_once(users):
    first, second = quick_switching(), quick_switching()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the first to begin is not the last to end
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == users
    with quick_switching():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == users


def test_what_the_user_sets_meanwhile_stays():
    with quick_switching():
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_job_that_fails_gives_it_back(users):
    with pytest.raises(ValueError, match="broken"), quick_switching():
        raise ValueError("broken")
    assert sys.getswitchinterval() == users
