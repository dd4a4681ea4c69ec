"""Errors have one place, which costs nothing to import; they travel between processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback

import pytest

from clonos import errors
from clonos.core.decisions import Fail
from clonos.nodes.errors import failure_of
from clonos.sources.files_reader import FileList
from clonos.storage.files import files_of

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ClonosError)
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_travels(kind):
    made = kind("what", "went wrong") if kind is errors.CallError else kind("what", where="here")
    found = pickle.loads(pickle.dumps(made))
    assert type(found) is kind
    assert str(found) == str(made)
    assert kind.__module__.startswith("clonos.errors")


def test_they_import_nothing_else():
    code = "import sys, clonos.errors; print(*(m for m in sys.modules if m.startswith('clonos')))"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert set(found.stdout.decode().split()) == {
        "clonos", "clonos.version", "clonos.errors", "clonos.errors.base", "clonos.errors.causal",
    }  # fmt: skip


@pytest.mark.parametrize("opened", [files_of, FileList.find])
def test_not_even_its_cause_tells_keys(opened):
    """Those of S3 often have slashes, of which Arrow complains with the whole URI."""
    uri = f"s3://KEY:SE/{'CR'}{'ET'}@bucket/job"
    with pytest.raises(errors.ClonosError, match="%2F") as caught:
        opened(uri)
    assert "CRET" not in "".join(traceback.format_exception(caught.value))


def test_what_a_slot_reports_by_name_is_known():
    fail = Fail(task=0, error="UnusableStore", message="no such bucket")
    assert type(failure_of(fail, "out[0]")) is errors.UnusableStore
