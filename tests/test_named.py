"""What a command says of the job that it was given."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import clonos
from clonos.errors import NotFound
from clonos.named import named_job


def of_lost_files():
    return clonos.Job().source(clonos.sources.files("/nowhere/rows.csv", "csv", "n long"))


def of_nothing():
    return dict[str, clonos.Job]()["job"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (of_lost_files, r"SourceError: there are no files at /nowhere/rows\.csv\. To do: check"),
        (of_nothing, r"KeyError: 'job'\. To do: correct the function"),
    ],
)
def test_an_error_of_the_definition_is_its_own(monkeypatch, job, said):
    module = ModuleType("my_jobs")
    module.__dict__["job"] = job
    monkeypatch.setitem(sys.modules, "my_jobs", module)
    with pytest.raises(NotFound, match=f"'my_jobs' has raised {said}") as caught:
        named_job("my_jobs")
    assert "there is no" not in str(caught.value).replace("there are no files", "")
    assert job.__name__ in caught.value.trace
