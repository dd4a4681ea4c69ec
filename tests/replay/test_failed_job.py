"""A real job fails; its error is found again without Spark, with the answers that it had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
HERE = Path(__file__).parent


def run(*words, **options):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        **options,
    )


def test_an_error_is_found_again(tmp_path):
    failed = run(HERE / "failing.py", tmp_path)
    said = re.search(r"ValueError: score \d+ after \d+", failed.stderr)
    assert said is not None, failed.stderr[-3000:]
    replay = ("-m", "clonos.cli", "replay", "failing:job", tmp_path)
    again = run(*replay, "--beyond", "--task", "total[0]")
    assert again.returncode == 1, again.stderr
    assert said[0] in again.stderr, "the same answers, and the same state"
    assert again.stderr.startswith("Traceback of your code")
    steps = re.findall(r"^total\[0\] step (\d+).*: \d+ items? of score\[0\]", again.stdout, re.M)
    numbers = list(map(int, steps))
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert "(not in the log)" not in "\n".join(again.stdout.splitlines()[:-1])
    debugged = run(*replay, "--beyond", "--pdb", input="p row.n, row.score\nq\n")
    assert f"(777, {said[0].split()[2]})" in debugged.stdout
    # Nothing was changed: the same once more, and no lock is left.
    assert run(*replay).stdout.splitlines()[-1].startswith("total[0]: all ")
    assert not [name for name in os.listdir(tmp_path / "journal") if name.endswith("copy")]
