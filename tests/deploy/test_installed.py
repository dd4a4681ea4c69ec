"""The wheel in an empty environment: the first program of the README, and an application whose
executors get the environment as an archive."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.conftest import submit

ROOT: Final = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def environment(**more: str) -> dict[str, str]:
    """Nothing of this checkout is on the path."""
    kept = ("PATH", "HOME", "JAVA_HOME", "LANG")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {**found, "SPARK_LOCAL_IP": "127.0.0.1", **more}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment are that has the wheel, and what that needs."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("clonos-*.whl")
    venv.create(folder / "empty", with_pip=True)
    programs = folder / "empty" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "-q", f"{wheel}[tls]"]
    subprocess.run(install, check=True, timeout=1500)
    return programs


def test_hello_world_of_the_wheel(installed, tmp_path):
    """All that it imports comes with it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"## Hello, world\n\n```python\n(.*?)```", readme, re.DOTALL)
    assert found
    (tmp_path / "hello.py").write_text(found[1])
    done = subprocess.run(
        [str(installed / "python"), "hello.py"],
        cwd=tmp_path,
        env=environment(),
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


@pytest.fixture
def nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no packages on workers that start now, but Spark's."""
    monkeypatch.delenv("PYTHONPATH")


@pytest.mark.usefixtures("nothing_there")
def test_executors_get_the_environment(installed, two_workers, tmp_path):
    """As an archive, unpacked where an executor works; an executor is killed."""
    pack = [str(installed / "python"), "-m", "pip", "install", "-q", "venv-pack"]
    subprocess.run(pack, check=True, timeout=600)
    archive = tmp_path / "environment.tar.gz"
    pack = [str(installed / "venv-pack"), "-q", "--compress-level", "1", "-o", str(archive)]
    subprocess.run([*pack, "-p", str(installed.parent)], check=True, timeout=600)
    there = environment(
        PYSPARK_DRIVER_PYTHON=str(installed / "python"), PYSPARK_PYTHON="./environment/bin/python"
    )
    program, master = installed / "spark-submit", two_workers.address
    sent, home = ("--archives", f"{archive}#environment"), "environment"
    submit(program, master, tmp_path, there, *sent, home=home)
