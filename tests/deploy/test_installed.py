"""The wheel in an empty environment, and the first program of the README in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_hello_world_of_the_wheel(tmp_path):
    """All that it imports comes with it: nothing of this checkout is on the path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("clonos-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", str(wheel)], check=True, timeout=1500)
    readme = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"## Hello, world\n\n```python\n(.*?)```", readme, re.DOTALL)
    assert found
    (tmp_path / "hello.py").write_text(found[1])
    kept = ("PATH", "HOME", "JAVA_HOME", "LANG")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [python, "hello.py"],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, int] = {}
    for word, n in re.findall(r"^\d+\s+(\w+)\s.*\s(\d+)$", done.stdout, re.MULTILINE):
        counts[word] = counts.get(word, 0) + int(n)
    assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}, done.stdout
