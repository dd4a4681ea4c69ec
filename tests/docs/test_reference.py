"""``docs/reference.md`` and ``docs/errors.md`` name what there is, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import clonos
from clonos.api import aggregates, windows
from clonos.api.starting import TRIGGERS, StartOptions
from clonos.api.windowed import WindowedStream
from clonos.cli import commands
from clonos.cluster.result import JobResult

DOCS = Path(__file__).parents[2] / "docs"
INSIDE = {
    "CompactorDied", "ExecutorLost", "InvalidTransition", "SchemaMismatch", "SlotFailed",
    "SpoolClosed",
}  # fmt: skip
"""What reaches nobody but as the cause of another error."""
BASES = {"CausalError", "DefinitionError", "PeerUnreachable"}
FAULTS = {"MalformedMessage", "ProtocolError"}
"""Of clonos: told below the tables."""


def section(title: str) -> str:
    """What stands under a heading of the reference."""
    text = (DOCS / "reference.md").read_text()
    return text[text.index(f"## {title}") :].split("\n## ")[0]


def named(text: str) -> set[str]:
    """What stands in backquotes, without what is no name."""
    return {name for name in re.findall(r"`(?:ctx\.)?(\w+)`", text) if not name.isdecimal()}


def first_column(text: str) -> str:
    """Of all rows of the tables."""
    return "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))


def public(*of: object) -> set[str]:
    """Names without an underscore."""
    return {name for each in of for name in dir(each) if not name.startswith("_")}


def options(of: object) -> set[str]:
    """The names of its parameters."""
    return set(inspect.signature(of).parameters) - {"self"}  # type: ignore[arg-type]


def test_options_of_a_job():
    assert named(first_column(section("`clonos.Job("))) == options(clonos.Job)


def test_a_job():
    listed = named(section("A job\n"))
    assert public(clonos.Job) <= listed
    of_result = re.findall(r"self\.([a-z]\w*)", inspect.getsource(JobResult.__init__))
    assert public(JobResult) | set(of_result) <= listed


def test_windows():
    """And aggregates, and what windows make."""
    text = section("Windows")
    made = set(re.findall(r"^\| `(\w+)\(", text, re.MULTILINE)) - {"clonos"}
    assert made == public(WindowedStream)
    functions = set(re.findall(r"`clonos\.(\w+)", text))
    assert functions == public(windows) & set(clonos.__all__) | public(aggregates) & set(
        clonos.__all__
    )


def test_options_of_a_start():
    listed = named(first_column(section("`job.start(")))
    assert listed == set(StartOptions.__annotations__) - set(TRIGGERS)
    assert listed == options(clonos.RunningJob) - {"compiled", "spark", "graph"}


def test_streams():
    listed = named(section("Streams"))
    assert public(clonos.Stream, clonos.KeyedStream) <= listed | {"where"}
    assert not [name for name in listed if not hasattr(clonos.KeyedStream, name)]


def test_context():
    listed = named(first_column(section("`ctx`")))
    assert listed == public(clonos.Context, clonos.ProcessContext) | {"clock", "timers"}


def test_a_running_job():
    assert named(section("A running job")) == public(clonos.RunningJob) - {"start"}


def test_commands():
    assert set(re.findall(r"`clonos (\w+)`", section("Commands"))) == set(commands())


def errors() -> Iterator[type]:
    """All classes of errors that clonos has."""
    for module in pkgutil.walk_packages(clonos.__path__, "clonos."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:  # an extra that is not installed
                continue
    found: list[type] = [clonos.ClonosError]
    for each in found:
        found += each.__subclasses__()
    return (each for each in found[1:] if each.__module__.startswith("clonos."))


@pytest.mark.filterwarnings("ignore")
def test_errors():
    text = (DOCS / "errors.md").read_text()
    known = {each.__name__ for each in errors() if not each.__name__.startswith("_")}
    to_catch = {name for name in known if hasattr(clonos.errors, name)}
    assert named(first_column(text)) == to_catch - BASES - FAULTS
    assert known - to_catch == INSIDE
    assert (BASES | FAULTS) - {"PeerUnreachable"} <= named(text)


def test_errors_are_in_order():
    text = (DOCS / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    assert rows == sorted(rows, key=str.lower)
