"""The example between two streams of Spark: killed in each execution, with the same verdict."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from examples.demo.process import environment
from examples.payments import watch

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

KILLS = ["worker", "executor", "driver", "worker"]
FILES = 40


@pytest.mark.parametrize("execution", ["tasks", "spark"])
def test_it_is_killed_and_the_verdict_is_the_same(execution):
    command = [sys.executable, "-m", watch.__name__, "--files", str(FILES), "--every", "0.3"]
    done = subprocess.run(
        [*command, "--execution", execution, "--kill", *KILLS],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.findall(r"kill -9 \d+: the (\w+)", done.stdout) == KILLS
    # 10,000 payments in 50 s: ten merchants in five windows.
    assert "50 windows of merchants, 0 differ in payments or cents" in done.stdout
    assert "nothing lost, nothing twice, nothing changed" in done.stdout
