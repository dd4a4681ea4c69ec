"""Errors have one place, which costs nothing to import; they travel between processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from clonos import errors
from clonos.core.decisions import Fail
from clonos.nodes.errors import failure_of

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


def test_what_a_slot_reports_by_name_is_known():
    fail = Fail(task=0, error="UnusableStore", message="no such bucket")
    assert type(failure_of(fail, "out[0]")) is errors.UnusableStore
