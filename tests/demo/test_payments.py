"""The payments example, in both executions, while what runs it is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1600)]

KILLS = ("worker", "executor", "driver", "worker")


@pytest.mark.parametrize("execution", ["tasks", "spark"])
def test_every_payment_is_judged_once(execution):
    """Spark SQL finds in the output what it computes itself, and the service's own answers."""
    command = [sys.executable, "-m", "examples.payments.watch", "--execution", execution]
    command += ["--files", "80", "--kill", *KILLS]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert tuple(re.findall(r"^kill -9 \d+: the (\w+)$", done.stdout, re.MULTILINE)) == KILLS
    (judged,) = re.findall(r"(\d+) windows of merchants, 0 differ", done.stdout)
    assert int(judged) >= 10
    assert "nothing lost, nothing twice, nothing changed" in done.stdout
