"""The interpreter is the user's when nothing of ours runs; then nobody waits long."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from clonos.runtime.interpreter import SWITCH_S, low_latency


@pytest.fixture(autouse=True)
def users() -> Iterator[float]:
    """What the user has set."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_several_jobs_at_once(users):
    first, second = low_latency(), low_latency()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the first to begin is not the last to end
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == users
    with low_latency():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == users


def test_what_the_user_sets_meanwhile_stays():
    with low_latency():
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_job_that_fails_gives_it_back(users):
    with pytest.raises(ValueError, match="broken"), low_latency():
        raise ValueError("broken")
    assert sys.getswitchinterval() == users


def test_the_garbage_collector_passes_over_what_was_there():
    """To look at all that is imported halts every thread for a tenth of a second."""
    begin = len(gc.get_objects())
    first, second = low_latency(), low_latency()
    first.__enter__()
    second.__enter__()
    assert len(gc.get_objects()) < begin / 10
    first.__exit__(None, None, None)
    assert len(gc.get_objects()) < begin / 10
    second.__exit__(None, None, None)
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > begin / 2


class Own:
    """Only the garbage collector ends it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_garbage_before_is_collected():
    gc.disable()
    gone = weakref.ref(Own())
    with low_latency():
        gc.enable()
        assert gone() is None


def test_what_becomes_garbage_meanwhile_is_collected():
    with low_latency():
        gone = weakref.ref(Own())
        gc.collect()
        assert gone() is None


def test_what_an_earlier_job_has_left_is_collected():
    """It had grown old by then, and would be passed over for ever."""
    with low_latency():
        left = Own()
    gc.collect()
    gone = weakref.ref(left)
    del left
    with low_latency():
        assert gone() is None
