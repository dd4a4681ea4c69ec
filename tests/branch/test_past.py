"""A bundle is a test: of the functions that a job has now, by a fixture of pytest's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import clonos
from clonos.replay import NothingToReplay
from clonos.simulator.jobs.arrow import Running
from clonos.testing import run_past
from tests.branch.test_bundles import bundled, definition, my_job, simulated

pytest_plugins = ["pytester"]


class Failing(Running):
    """It does not like one of the rows."""

    def on_row(self, row, ctx):
        if row.id == 17:
            raise ValueError(f"no limit for {row.key}")
        return super().on_row(row, ctx)


class Twice(Running):
    """It delivers something else."""

    def on_row(self, row, ctx):
        return [(*made[:3], 2 * made[3]) for made in super().on_row(row, ctx)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    job = my_job()
    out, _ = bundled(job, simulated(job, 5), tmp_path_factory.mktemp("past"))
    return out


def test_the_same_functions_do_the_same(path):
    for job in (definition(), definition):
        past = run_past(job, path)
        past.expect_no_error()
        past.expect_same_output()
        past.expect_same_output("out", keys=["id"])
        assert past.rows() == past.rows_then("out")
        assert past.rows().num_rows
        with pytest.raises(AssertionError, match="no function raised"):
            past.expect_error()


def test_an_error_is_what_was_expected_or_not(path):
    past = run_past(definition(Failing()), path)
    assert past.error_then is None
    error = past.expect_error(ValueError, match="no limit for")
    assert type(error) is ValueError
    with pytest.raises(AssertionError, match="KeyError was expected, and not") as caught:
        past.expect_error(KeyError)
    assert caught.value.__cause__ is error
    with pytest.raises(AssertionError, match="was expected, and not"):
        past.expect_error(ValueError, match="something else")
    for expect in (past.expect_no_error, past.expect_same_output):
        with pytest.raises(AssertionError) as caught:
            expect()
        assert str(caught.value).startswith("Traceback of your code")
        assert 'raise ValueError(f"no limit for {row.key}")' in str(caught.value)


def test_other_rows_are_shown(path):
    past = run_past(definition(), path, replace={"running": Twice()})
    with pytest.raises(AssertionError, match=r"other rows than then \(a: then, b: now\)\nout: "):
        past.expect_same_output()
    with pytest.raises(AssertionError, match=r"'change': 'changed', 'id': \d+.*'amount_b': "):
        past.expect_same_output(keys=["id"])
    assert past.compare(keys=["id"]).count("changed")


def test_questions_that_nobody_had_asked(path):
    def enrich(row, ctx):
        return (*row[:3], ctx.call(rate, row.id, "new"))

    def rate(number, how):
        raise AssertionError("a service is never called")

    with pytest.raises(clonos.ClonosError, match="rate"):
        run_past(definition(), path, replace={"enrich": enrich})
    answered = {"enrich": enrich}
    past = run_past(definition(), path, replace=answered, stand_in=lambda fn, *args: 1.0)
    assert past.rows().num_rows == past.rows_then().num_rows


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(NothingToReplay, match="no such file"):
        run_past(definition(), tmp_path / "nothing.clonos")


TEST = """
import pytest
from tests.branch.test_bundles import definition
from tests.branch.test_past import Failing, Twice

def test_good(clonos_past):
    clonos_past(definition(), "pasts/night.clonos").expect_same_output()

def test_bad(clonos_past):
    clonos_past(definition(Twice()), "pasts/night.clonos").expect_same_output()

def test_raises(clonos_past):
    clonos_past(definition(Failing()), "pasts/night.clonos").expect_no_error()
"""


def test_the_fixture_finds_files_beside_the_test(pytester, path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it may be installed, or not yet
    content = path.read_bytes()
    pytester.mkdir("deep")
    (pytester.path / "deep" / "pasts").mkdir()
    night = pytester.path / "deep" / "pasts" / "night.clonos"
    night.write_bytes(content)
    (pytester.path / "deep" / "test_night.py").write_text(TEST)
    root = Path(__file__).parents[2]
    result = pytester.runpytest_subprocess(
        *("-p", "clonos.pytest_plugin", "-c", "/dev/null"),
        *(f"--rootdir={pytester.path}", "-o", f"pythonpath={root} {root / 'src'}"),
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*other rows than then (a: then, b: now)*"])
    result.stdout.fnmatch_lines(["*Traceback of your code*", "*no limit for*"])
    assert night.read_bytes() == content
    assert [found.name for found in night.parent.iterdir()] == [night.name]


def test_pytest_finds_the_plugin_and_loads_little(pytester):
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r"pytest11\]\nclonos = \"([\w.]+)\"", project)
    assert found is not None
    script = f"import sys, {found[1]}; print(sorted({{'pyarrow', 'pyspark'}} & set(sys.modules)))"
    result = pytester.run("python", "-c", script)
    assert result.outlines == ["[]"]
