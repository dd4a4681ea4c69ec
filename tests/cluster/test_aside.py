"""Processes beside the driver: what they say, how they end, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clonos.cluster.aside import Aside
from clonos.cluster.witness import BUNDLES_MAX, _make_room
from clonos.errors import AsideFailed
from tests.processes import is_there

LIMIT_S = 60.0
"""Only a test that has failed waits for so long."""


def leaves_something(_: object, how: str) -> Iterator[str]:
    """Writes a temporary file, says where, and ends in some way."""
    path = Path(tempfile.mkdtemp(), "state")
    path.write_text("4111 1111 1111 1111")
    yield str(path)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "for ever":
        signal.pause()


@pytest.mark.parametrize("how", ["well", "killed", "for ever"])
def test_what_it_leaves_goes_with_it(how):
    aside = Aside(f"{__name__}:leaves_something", {"how": how}, "", priority=0)
    said = aside.said()
    path = Path(next(said))
    assert path.exists()
    if how == "killed":
        with pytest.raises(AsideFailed, match="exit code -9"):
            next(said)
    elif how == "well":
        assert list(said) == []
    aside.close()
    assert not path.exists()
    assert not [
        one for one in Path(tempfile.gettempdir()).glob("clonos-aside-*") if one in path.parents
    ]


DRIVER = f"""
import signal
from clonos.cluster.aside import Aside
aside = Aside("{__name__}:hangs", {{}}, "", priority=0)
print(*next(aside.said()), flush=True)
signal.pause()
"""


def hangs(_: object) -> Iterator[tuple[int, str]]:
    """Says which process it is and where its files are, and does nothing more."""
    yield os.getpid(), tempfile.gettempdir()
    signal.pause()


def test_one_that_hangs_does_not_outlive_a_killed_driver():
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        pid, room = it.stdout.readline().split()
        assert Path(room).exists()
        it.kill()
    until_s = time.monotonic() + LIMIT_S
    while is_there(int(pid)) or Path(room).exists():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_the_last_that_it_says_is_its_result():
    aside = Aside(f"{__name__}:leaves_something", {"how": "well"}, "", priority=0)
    assert not Path(aside.result(LIMIT_S)).exists()


def test_bundles_that_were_not_finished_go_with_the_oldest(tmp_path):
    for number in range(BUNDLES_MAX + 1):
        path = tmp_path / f"{number}.clonos"
        path.touch()
        os.utime(path, (number, number))
    (tmp_path / ".9.clonos.part").touch()
    _make_room(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{number}.clonos" for number in range(1, BUNDLES_MAX + 1)
    ]
