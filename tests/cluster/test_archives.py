"""Spark's archives on the path of its workers: left out if pip has installed the same files."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from clonos.cluster import archives

from .test_daemon import run

HOME = str(Path(pyspark.__file__).parent)
PACKAGES = str(Path(HOME).parent)


ARCHIVES = [path.name for path in Path(HOME, "python", "lib").glob("*.zip")]


def archives_of(home):
    """The paths that Spark puts in front of the others."""
    return [str(Path(home, "python", "lib", name)) for name in ARCHIVES]


def test_there_are_archives():
    assert len(ARCHIVES) == 2


def test_the_installed_package_is_spark_itself():
    path = ["", *archives_of(HOME), PACKAGES]
    assert archives.without_archives(path, {"SPARK_HOME": HOME}) == ["", PACKAGES]


@pytest.mark.parametrize("home", ["elsewhere", ""])
def test_spark_is_elsewhere(tmp_path, home):
    """Its archives may be of another version than the installed package."""
    spark = str(tmp_path / home) if home else ""
    path = [*archives_of(spark), PACKAGES]
    assert archives.without_archives(path, {"SPARK_HOME": spark}) == path


def test_nothing_is_installed(tmp_path):
    path = [*archives_of(HOME), str(tmp_path)]
    assert archives.without_archives(path, {"SPARK_HOME": HOME}) == path


def test_archives_of_users_stay(tmp_path):
    path = [str(tmp_path / "mine.zip"), *archives_of(HOME), PACKAGES]
    found = archives.without_archives(path, {"SPARK_HOME": HOME})
    assert found == [path[0], PACKAGES]


def test_an_archive_is_read_once(tmp_path, monkeypatch):
    """What is on the path when the daemon starts never changes; what comes later may."""
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    early, late = (tmp_path / f"{name}.zip" for name in ("early", "late"))
    for archive in (early, late):
        with ZipFile(archive, "w") as made:
            made.writestr("something.py", "")
        sys.path.append(str(archive))
        assert importlib.util.find_spec(f"nothing_in_{archive.stem}") is None
        if archive is early:
            archives.keep_as_read()
    for archive in (early, late):
        with ZipFile(archive, "a") as made:
            made.writestr(f"nothing_in_{archive.stem}.py", "")
    importlib.invalidate_caches()
    assert importlib.util.find_spec("nothing_in_early") is None
    assert importlib.util.find_spec("nothing_in_late") is not None


def test_the_daemon_imports_no_archive(monkeypatch):
    """It does not compile Spark's sources, and a slot looks for no package any more."""
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*archives_of(HOME), before]))
    monkeypatch.setenv("SPARK_HOME", HOME)
    origin, lookups = run(
        "import json, sys\n"
        "import clonos.cluster.daemon, pyspark, py4j\n"
        "from importlib import metadata\n"
        "from clonos.runtime.versions import installed\n"
        "lookups = []\n"
        "metadata.version = lookups.append\n"
        "installed()\n"
        "print(json.dumps([[pyspark.__file__, py4j.__file__], lookups]))"
    )
    assert not [file for file in origin if ".zip" in file]
    assert lookups == []
