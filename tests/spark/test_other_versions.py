"""Executors that have another version of clonos than the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from clonos.runtime.world import RealWorld
from clonos.spark.packed import packed
from clonos.version import VERSION

OLDER = """
import sys
sys.path[:0] = [{folder!r}]
from pathlib import Path
from pyspark import cloudpickle
run = cloudpickle.loads(Path({packet!r}).read_bytes())
print(list(run([1, 2])))
"""


@pytest.mark.parametrize("version", [VERSION, "0.0.9"])
def test_the_version_is_compared_before_anything_is_unpickled(tmp_path: Path, version: str) -> None:
    """An older clonos lacks modules and classes, or has others in their place."""
    older = tmp_path / "clonos"
    older.mkdir()
    (older / "__init__.py").touch()
    (older / "version.py").write_text(f"VERSION = {version!r}")
    (older / "errors.py").write_text("class OtherVersion(Exception): ...")
    world = RealWorld()
    function = packed(lambda batches: (type(world).__name__ for _ in batches))
    (tmp_path / "packet").write_bytes(cloudpickle.dumps(function))
    program = OLDER.format(folder=str(tmp_path), packet=str(tmp_path / "packet"))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100
    )
    last = done.stderr.strip().splitlines()[-1]
    if version == VERSION:
        assert "No module named 'clonos.runtime'" in last
    else:
        said = f"the executor has clonos 0.0.9; it should have clonos {VERSION}"
        assert last == f"clonos.errors.OtherVersion: {said}"
