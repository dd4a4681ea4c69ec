"""A real job fails; its error is found again without Spark, with the answers that it had."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent
REPLAY = ("replay", "failing:job")


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


COMMANDS = """
import io, json, os, sys
from clonos.cli import main

told = sys.stdout
for line in sys.stdin:
    words, typed, environment = json.loads(line)
    usual = sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(typed), io.StringIO(), io.StringIO()
    os.environ.update(environment)
    try:
        code = main(words)
        answer = code, sys.stdout.getvalue(), sys.stderr.getvalue()
    finally:
        sys.stdin, sys.stdout, sys.stderr, before = usual
        os.environ.clear()
        os.environ.update(before)
    print(json.dumps(answer), file=told, flush=True)
"""


@pytest.fixture
def clonos() -> Iterator[Any]:
    """The command, many times in one process, which has the hash seed of the slots."""
    command = [sys.executable, "-c", COMMANDS]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=HERE, env=environment, stdin=pipe, stdout=pipe, text=True
    ) as process:
        to, of = process.stdin, process.stdout
        assert to is not None
        assert of is not None

        def said(*words: object, typed: str = "", **environment: str) -> CompletedProcess[str]:
            texts = [*map(str, words)]
            to.write(json.dumps([texts, typed, environment]) + "\n")
            to.flush()
            return CompletedProcess(texts, *json.loads(of.readline()))

        yield said
        to.close()


TEST = """
import os
import failing

SAID = os.environ["SAID"]

def test_it_fails(clonos_past):
    past = clonos_past(failing.job, "night.clonos")
    assert SAID == f"ValueError: {past.expect_error(ValueError, match='score')}"
    assert SAID in past.error_then.what

def test_it_is_mended(clonos_past):
    past = clonos_past(failing.job, "night.clonos", replace={"total": failing.Corrected()})
    past.expect_same_output("out")
    assert past.rows("out").num_rows > past.rows_then("out").num_rows
"""


def bundle_is_enough(clonos, checkpoint, out, said):
    """The error is found again, and is a test, while the checkpoint is away."""
    checkpoint.rename(away := checkpoint.with_name("away"))
    again = clonos(*REPLAY, out)
    assert (again.returncode, said in again.stderr) == (1, True), again.stderr
    mended = clonos("branch", "failing:job", out, "--replace", "total=failing:Corrected")
    assert (mended.returncode, "0 of the job's" in mended.stdout) == (1, True), mended.stderr
    (out.parent / "test_night.py").write_text(TEST)
    tested = run(
        *("-m", "pytest", "-q", "-p", "clonos.pytest_plugin", "-p", "no:cacheprovider"),
        *("-c", os.devnull, "-o", f"pythonpath={HERE}", out.parent / "test_night.py"),
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # it may be installed, or not yet
            "PYTHONHASHSEED": "0",  # as in the slots
            "SAID": said,
        },
    )
    assert tested.returncode == 0, tested.stdout
    away.rename(checkpoint)


def test_an_error_is_found_again(clonos, tmp_path):
    failed = run(HERE / "failing.py", tmp_path)
    said = re.search(r"ValueError: score \d+ after \d+", failed.stderr)
    assert said is not None, failed.stderr[-3000:]
    bundle = re.search(r"clonos replay MODULE:JOB (\S+) --pdb shows it again", failed.stderr)
    assert bundle is not None, failed.stderr[-3000:]
    debugged = run(
        *("-m", "clonos.cli", *REPLAY, bundle[1], "--pdb"), input="p row.n, row.score\nq\n"
    )
    assert f"(777, {said[0].split()[2]})" in debugged.stdout
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    replay = (*REPLAY, tmp_path)
    again = clonos(*replay, "--task", "total[0]")
    assert again.returncode == 1, again.stderr
    assert said[0] in again.stderr, "the same answers, and the same state"
    assert again.stderr.startswith("Traceback of your code")
    steps = re.findall(r"total\[0\] step (\d+): \d+ items? of numbers\[0\]", again.stdout)
    numbers = list(map(int, steps))
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    debugged = clonos(*replay, "--pdb", typed="p row.n, row.score\nq\n")
    assert f"(777, {said[0].split()[2]})" in debugged.stdout
    assert {path: path.read_bytes() for path in files} == files, "nothing was changed"
    kept = clonos("history", tmp_path)
    assert re.search(r"^ +1  .* numbers\[0\] 0, total\[0\] 0$", kept.stdout, re.MULTILINE), (
        kept.stdout
    )
    long_ago = clonos(*replay, "--at", "oldest", "--task", "numbers[0]", "--to", "1")
    assert "numbers[0] step 1: " in long_ago.stdout, long_ago.stderr
    branch = ("branch", "failing:job", tmp_path)
    same = clonos(*branch, "--replace", "total=failing:Total")
    assert said[0] in same.stderr, "it fails at the same row"
    mended = clonos(*branch, "--replace", "total=failing:Corrected", "--compare", "out")
    assert mended.returncode == 1, mended.stderr
    assert re.search(r"0 of the job's \d+ rows are missing, [1-9]\d* of", mended.stdout)
    assert re.search(r"score, ask: \d+ answers from the log, 0 reused, 0 stubbed", mended.stdout)
    assert {path: path.read_bytes() for path in files} == files, "nothing was changed"
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(files), "nor left there"
    out = tmp_path.with_name("night.clonos")
    made = clonos("bundle", "failing:job", tmp_path, "--out", out)
    assert made.returncode == 0, made.stderr
    assert re.search(
        rf"\d+ steps of total\[0\]; it ends with total\[0\]: Va.*{said[0][12:]}", made.stdout
    )
    assert {path: path.read_bytes() for path in files} == files, "nothing was changed"
    bundle_is_enough(clonos, tmp_path, out, said[0])
    part = tmp_path.with_name("part.clonos")
    words = ("bundle", "failing:job", tmp_path, "--task", "total[0]", "--from", "oldest")
    made = clonos(*words, "--to", "3", "--redact", "common", "--out", part)
    assert made.returncode == 0, made.stderr
    assert " bytes, 3 steps of total[0]" in made.stdout
    again = clonos(*REPLAY, part, "--task", "total[0]", "--rows")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("total[0] step ") == 3
    corrected = clonos(*replay, CORRECTED="1")
    assert corrected.returncode == 0, corrected.stderr
    found = re.search(
        r"total\[0\]: (\d+) of (\d+) delivered outputs were made again", corrected.stdout
    )
    assert found is not None
    assert found[1] == found[2]
