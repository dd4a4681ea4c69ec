"""``./test`` runs its parts side by side, shows what all of them say, and leaves none behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import is_there

SCRIPT = Path(__file__).parents[1] / "test"
PARTS = ("lint", "quick", "spark")
STUB = """
import os, subprocess, sys
part = "lint"
if "pytest" in sys.argv:
    part = "quick" if any("not spark" in given for given in sys.argv) else "spark"
print(part, "says something", flush=True)
todo = os.environ.get(f"DO_{part}", "0")
if todo == "wait":
    child = subprocess.Popen(["sleep", "600"])
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    child.wait()
sys.exit(int(todo))
"""


@pytest.fixture
def begun(tmp_path):
    """The script, whose parts end with a code, or wait."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "test")
    stubs = {"scripts/setup.sh": "#!/bin/sh\n", ".venv/spark.jsa": ""}
    stubs |= {
        f".venv/bin/{name}": f"#!{sys.executable}\n{STUB}" for name in ("python", "ruff", "mypy")
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    started: list[Any] = []

    def ignores_interrupts() -> None:  # as what a shell starts in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def begin(**parts: str) -> Any:
        env = {**os.environ, **{f"DO_{part}": todo for part, todo in parts.items()}}
        env.pop("HEEDS_INTERRUPTS", None)  # of the script that runs these tests
        process = subprocess.Popen(
            ["./test"],
            cwd=tmp_path,
            env=env,
            preexec_fn=ignores_interrupts,  # noqa: PLW1509 - it takes no lock
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a terminal of its own: Ctrl-C reaches its foreground
        )
        started.append(process)
        return process

    yield begin
    for pid in [*(process.pid for process in started), *pids(tmp_path)]:
        if is_there(pid):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.communicate()


def pids(folder: Path) -> list[int]:
    """Of the parts that wait, and their children."""
    path = folder / "pids"
    return list(map(int, path.read_text().split())) if path.exists() else []


@pytest.mark.parametrize("failing", [None, *PARTS])
def test_what_each_part_says_is_shown_and_each_can_fail(begun, failing):
    process = begun(**({} if failing is None else {failing: "4"}))
    said, _ = process.communicate(timeout=60)
    assert (process.returncode != 0) == (failing is not None)
    for part in PARTS:
        assert f"{part} says something" in said
    assert ("test: failed" in said) == (failing is not None)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("still", [PARTS, ("spark",)])
def test_who_interrupts_it_ends_all_parts(begun, tmp_path, number, code, still):
    process = begun(**dict.fromkeys(still, "wait"))
    until = time.monotonic() + 60
    while len(pids(tmp_path)) < 2 * len(still):
        assert time.monotonic() < until
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert "interrupted" in said
    assert not any(map(is_there, pids(tmp_path)))
