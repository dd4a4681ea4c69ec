"""The measurement of slow tasks: what slows a process, and how its figures are made."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time

import numpy as np
import pytest

from clonos.nodes.views import JobEvent
from clonos_bench import slow
from clonos_bench.processes import cpu_seconds


def used_s(pid):
    found = cpu_seconds(pid)
    assert found is not None
    return found


def test_a_slowed_process_gets_a_part_of_a_processor_and_then_all_of_it_again():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            with slow.slowed(process.pid, 0.25):
                began, before = time.monotonic(), used_s(process.pid)
                time.sleep(1.0)
                used, passed = used_s(process.pid) - before, time.monotonic() - began
            assert used < 0.5 * passed
            before = used_s(process.pid)
            for _ in range(1_000):
                if used_s(process.pid) > before + 0.1:
                    break
                time.sleep(0.01)
            else:
                pytest.fail("it was not let go on")
        finally:
            process.kill()


def judged(late, events=(), seconds=10.0):
    times = np.arange(0.0, 20.0, 0.01)
    arguments = argparse.Namespace(seconds=seconds, before=5.0)
    told = [JobEvent(what, "state[0]", 0, at) for what, at in events]
    return slow.judged(arguments, told, (times, late(times)), 10.0)


def test_who_was_overtaken_is_normal_again():
    events = [("moved", 9.0), ("rival", 11.0), ("moved", 11.5)]
    found = judged(lambda at: np.where((at > 10) & (at < 12), 500.0, 5.0), events)
    assert (found.noticed, found.over) == (1000.0, 1500.0)
    assert found.normal == pytest.approx(2.0, abs=0.02)
    assert found.kept == pytest.approx(1.0)


def test_who_stays_slow_has_done_a_part_of_its_work():
    found = judged(lambda at: 5.0 + np.maximum(0.0, 750 * (at - 10)))
    assert math.isinf(found.noticed)
    assert math.isinf(found.normal)
    assert found.kept == pytest.approx(0.25, abs=0.01)
