"""Dependencies point downwards: what each layer of the package may import.

The rules are the tables below. ``core`` is sans-I/O and therefore has an allow-list instead of
trust. Imports under ``if TYPE_CHECKING`` do not run and do not count. What is no library lies
beside it: examples use what users have, benchmarks look deeper, and the library imports neither.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "clonos"

LAYERS: dict[str, set[str]] = {
    "core": set(),
    "blame": set(),
    "extras": set(),
    "named": {"blame"},
    "options": set(),
    "kafka": {"extras"},
    "postgres": {"extras"},
    "web": {"transport"},
    "columns": {"blame", "core"},
    "arguments": {"columns"},
    "state": {"core", "columns"},
    "operators": {"blame", "options", "core", "columns", "state"},
    "transport": {"core"},
    "storage": {"columns", "core", "extras", "postgres"},
    "spark": {"columns"},
    "sinks": {"arguments", "blame", "extras", "kafka", "postgres", "core", "columns", "state",
        "operators", "storage"},
    "sources": {"arguments", "blame", "extras", "kafka", "postgres", "web", "core", "columns",
        "state", "operators", "storage", "spark"},
    "graph": {"core", "columns", "operators", "sinks", "sources"},
    "dataframes": {"blame", "core", "causal", "columns", "operators", "storage", "sources",
        "sinks", "graph", "spark"},
    "nodes": {"blame", "core", "transport"},
    "upgrade": {"core", "columns", "state", "operators", "storage", "graph"},
    "runtime": {"blame", "extras", "core", "columns", "state", "operators", "transport",
        "storage", "sinks", "sources", "nodes"},
    "watch": {"extras", "web", "core", "nodes"},
    "cluster": {"blame", "options", "core", "columns", "state", "transport", "storage", "spark",
        "sinks", "sources", "graph", "nodes", "runtime", "upgrade", "watch"},
    "exports": {"extras", "nodes", "cluster"},
    "api": {"arguments", "options", "core", "columns", "operators", "sinks", "sources", "graph"},
    "simulator": {"blame", "named", "core", "columns", "state", "operators", "transport", "storage",
        "sinks", "sources", "graph", "nodes", "upgrade", "cluster", "api", "replay", "branch"},
    "testing": {"blame", "named", "core", "columns", "state", "operators", "storage", "sinks",
        "sources", "graph", "nodes", "simulator", "replay", "branch"},
    "pytest_plugin": {"testing"},
    "causal": {"options", "extras", "postgres", "core", "columns", "operators", "transport",
        "storage"},
    "replay": {"blame", "named", "options", "columns", "core", "state", "operators", "storage",
        "sinks", "sources", "graph", "nodes", "runtime", "upgrade", "watch", "cluster"},
    "branch": {"options", "blame", "named", "columns", "core", "state", "operators", "storage",
        "sources", "graph", "nodes", "replay", "runtime"},
}  # fmt: skip
"""layer -> the layers it may import."""

FACADE = "clonos"
"""The package itself: what users import."""

LAYERS[FACADE] = {"api", "graph", "operators", "core", "sinks", "sources", "branch", "replay"}
LAYERS["cli"] = {FACADE, "branch", "replay", "simulator", "testing", "watch"}

PUBLIC = {
    "clonos.causal", "clonos.errors", "clonos.sinks", "clonos.sinks.data_source", "clonos.sources",
    "clonos.spark.session",
}  # fmt: skip
"""Modules for users, beside the facade: all of Clonos that examples import."""

BENCHMARKS_ALSO = {
    "clonos.causal",  # the log of plain PySpark jobs, without Spark
    "clonos.cluster",  # they start jobs with a watch on what is delivered,
    "clonos.nodes.views",  # ... and read recoveries
    "clonos.core",  # ... which arrives as the house-keeper's items
    "clonos.graph",  # the plain loop runs compiled operators without any engine,
    "clonos.testing",  # ... each task in the harness
    "clonos.operators",  # ... and operators with a stopwatch
    "clonos.simulator.world.virtual",  # ... and automata without a world,
    "clonos.columns.batches",
    "clonos.transport.events",  # ... whose messages are encoded
    "clonos.transport.frames",  # ... and framed
    "clonos.sources.readers",
    "clonos.sources.spec",  # sources: paced, gated, generated
    "clonos.storage",  # the journal's commits, timed alone
    "clonos.runtime",  # the switch that has slots write profiles
}
"""What benchmarks import beyond that, and what for."""

BESIDE: dict[str, set[str]] = {"clonos_bench": BENCHMARKS_ALSO, "examples": set()}
"""What lies beside the package, and what it may import of it that is not public."""

LAZY: dict[str, set[str]] = {"api": {"branch", "cluster", "dataframes", "replay", "spark"}}
"""layer -> what it may import in addition, but only inside a function: when a job is started, or
looked back at."""

ROOMS: dict[str, set[str]] = {
    "stateless": set(), "windows": set(), "by_key": {"windows"}, "calls": {"stateless"},
    "process": {"calls"},
}  # fmt: skip
"""The rooms of ``operators``, and which others each of them uses. All use what lies above them."""

EVERYBODY = {"errors", "version"}
"""Modules that every layer may import and that import none."""

CIRCLES: dict[frozenset[str], str] = {
    frozenset(
        {f"clonos.api.{one}" for one in ("job", "feedback", "streams", "columns",
         "frames", "grouped", "keyed", "joins", "placed",
            "stateful", "windowed")}
    ):
        "what users chain: a job makes streams, a stream makes windows, these make streams again",
    frozenset({"clonos.simulator.checks.endings", "clonos.simulator.checks.recorder"}):
        "checks read what was recorded, and the recorder raises what they raise",
    frozenset(
        {f"clonos.simulator.processes.{one}" for one in ("calls", "cluster", "driver", "durable",
            "scratch", "slot", "spark")}
    ):
        "processes of the simulated cluster know it, and it makes them",
}  # fmt: skip
"""Modules that may import each other, some of them for types only, and why."""

SANS_IO = {"core", "nodes"}
"""Layers that touch nothing of the world."""

OF_TRANSPORT = ("clonos.transport.events.", "clonos.transport.errors.", "clonos.transport.states.")
"""What a sans-I/O layer may know of the transport: words, no sockets."""

CORE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "builtins", "collections", "contextlib", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "struct", "types",
    "typing",
    "datetime", "decimal",  # as types of values; what reads the clock is looked for below
    "msgpack", "xxhash", "json",
    "traceback",  # where an error came from, as text
}  # fmt: skip
"""Outside of clonos. Nothing with a clock, randomness, a thread, a file or a socket."""

CLOCKS = {"now", "utcnow", "today"}
"""Methods of the classes of ``datetime`` that read the clock: not in the core."""


class Import(NamedTuple):
    """A module that is imported, with the line, and whether only when a function runs."""

    module: str
    line: int
    is_lazy: bool


def is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def imports(
    node: ast.AST, package: str, *, is_lazy: bool = False, types: bool = False
) -> Iterator[Import]:
    """All imports below `node` that can run, and with `types` also those that are for types only;
    relative ones are resolved against `package`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, is_lazy)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")
            parents = parents[: len(parents) - node.level + 1]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, is_lazy)
    elif isinstance(node, ast.If) and is_type_checking(node.test) and not types:
        for statement in node.orelse:
            yield from imports(statement, package, is_lazy=is_lazy)
    else:
        is_lazy = is_lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from imports(child, package, is_lazy=is_lazy, types=types)


def layer_of(module: str) -> str:
    """The layer of a module of clonos; names that are no layer are the facade's own."""
    parts = module.split(".")
    known = LAYERS.keys() | EVERYBODY
    return parts[1] if len(parts) > 1 and parts[1] in known else FACADE


def reaches_inside(source: str, module: str, folders: set[str]) -> list[str]:
    """What `source`, the text of a `module` beside the package, imports that is not public, nor
    within `folders` of the package."""
    return [
        f"{module}:{line}: {name} is not in the list"
        for name, line, _ in imports(ast.parse(source), module.rpartition(".")[0])
        if name.split(".")[0] == "clonos"
        and layer_of(name) != FACADE
        and module_of(name) not in PUBLIC
        and not any(f"{name}.".startswith(f"{folder}.") for folder in folders)
    ]


def module_of(name: str) -> str:
    """The module that `name` is, or is a part of."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What `source`, the text of `module`, imports against the rules."""
    layer = layer_of(module)
    package = module if is_package else module.rpartition(".")[0]
    found = []
    for name, line, is_lazy in imports(ast.parse(source), package):
        top = name.split(".")[0]
        if top != "clonos":
            if top in BESIDE:
                found.append(f"{module}:{line}: the package must not import {top}")
            elif layer in SANS_IO and top not in CORE_MAY_IMPORT:
                found.append(f"{module}:{line}: {layer} is sans-I/O and must not import {top}")
            continue
        target = layer_of(name)
        allowed = {layer} | (set() if layer in EVERYBODY else EVERYBODY | LAYERS[layer])
        if is_lazy:
            allowed |= LAZY.get(layer, set())
        if target not in allowed:
            found.append(f"{module}:{line}: {layer} must not import {target} ({name})")
        elif layer in SANS_IO and target == "transport" and not name.startswith(OF_TRANSPORT):
            found.append(f"{module}:{line}: {layer} is sans-I/O and must not import {name}")
        elif target != layer and any(part.startswith("_") for part in public_parts(name)):
            found.append(f"{module}:{line}: {name} is private to {target}")
    return list(dict.fromkeys(found))


def public_parts(name: str) -> list[str]:
    return [part for part in name.split(".") if not part.endswith("__")]


def modules(package: Path = PACKAGE) -> Iterator[tuple[Path, str]]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module for _, module in modules()}


def test_every_module_keeps_to_its_layer():
    found = [
        violation
        for path, module in modules()
        for violation in violations(
            path.read_text("utf-8"), module, is_package=path.name == "__init__.py"
        )
    ]
    assert not found, "\n".join(["imports against the layers:", *found])


def uses_of_rooms(source: str, room: str) -> set[str]:
    """The other rooms of ``operators`` that the text of a module in a room uses."""
    used = (name for name, _, _ in imports(ast.parse(source), ""))
    parts = (name.split(".")[2] for name in used if name.startswith("clonos.operators."))
    return {part for part in parts if part in ROOMS} - {room}


@pytest.mark.parametrize("room", ROOMS)
def test_every_operator_keeps_to_its_room(room):
    files = list((PACKAGE / "operators" / room).glob("*.py"))
    assert len(files) > 1
    assert set().union(*(uses_of_rooms(f.read_text(), room) for f in files)) == ROOMS[room]


def test_a_step_into_another_room_is_found():
    assert uses_of_rooms("from clonos.operators.windows.kinds import FOR_EVER", "calls") == {
        "windows"
    }


@pytest.mark.parametrize("folder", ["benchmarks/src/clonos_bench", "examples"])
def test_what_lies_beside_the_package_imports_what_is_listed(folder):
    found = [
        violation
        for path, module in modules(ROOT / folder)
        for violation in reaches_inside(path.read_text("utf-8"), module, BESIDE[Path(folder).name])
    ]
    assert not found, "\n".join(["imports that are not in the list:", *found])


def test_every_part_of_the_package_is_in_the_table():
    parts = {module.split(".")[1] for _, module in modules() if "." in module}
    assert parts <= LAYERS.keys() | EVERYBODY | {"__main__"}


def speaks_flight(source: str) -> bool:
    """Whether a module uses the other transport that Arrow brings along."""
    return any(name.startswith("pyarrow.flight") for name, *_ in imports(ast.parse(source), ""))


def test_there_is_one_transport():
    """Its streams have the job's secret, TLS and limits; a second one would need them all again."""
    assert not [module for path, module in modules() if speaks_flight(path.read_text("utf-8"))]
    assert speaks_flight("def ask():\n    from pyarrow import flight")
    assert speaks_flight("import pyarrow.flight as f")


def test_the_table_points_downwards():
    graph = {layer: below | LAZY.get(layer, set()) for layer, below in LAYERS.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("clonos.core.log", "import time", "must not import time"),
        ("clonos.core.log", "def f():\n    import random", "must not import random"),
        ("clonos.core.log", "from pyarrow import flight", "must not import pyarrow"),
        ("clonos.core.log", "import importlib", "must not import importlib"),
        ("clonos.core.log", "from clonos import Job", "core must not import clonos"),
        ("clonos.core.log", "from clonos.graph import compile", "core must not import graph"),
        ("clonos.core.log", "from ..graph import compile", "core must not import graph"),
        ("clonos.core.log", "from .. import graph", "core must not import graph"),
        ("clonos.nodes.slot", "import threading", "nodes is sans-I/O"),
        ("clonos.nodes.slot", "from clonos.transport.plane import Plane", "nodes is sans-I/O"),
        (
            "clonos.operators.by_key.join",
            "import clonos.transport",
            "operators must not import transport",
        ),
        ("clonos.runtime.loop", "from clonos import cluster", "runtime must not import cluster"),
        ("clonos.api.job", "from clonos.cluster import run", "api must not import cluster"),
        ("clonos.errors", "from clonos.core import plan", "errors must not import core"),
        ("clonos.cli", "import clonos_bench", "the package must not import clonos_bench"),
        ("clonos.graph.plan", "from clonos.core.log import _cut", "private to core"),
        (
            "clonos.core.log",
            "if TYPE_CHECKING:\n    import time\nelse:\n    import socket",
            "must not import socket",
        ),
    ],
)
def test_a_violation_is_found(module, source, complaint):
    (found,) = violations(source, module)
    assert complaint in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("clonos.core.log", "from collections.abc import Mapping\nimport msgpack"),
        ("clonos.core.log", "from . import plan\nfrom .plan import Plan, _private"),
        ("clonos.core.log", "from clonos import errors\nfrom clonos.errors import ClonosError"),
        ("clonos.core.log", "import typing\nif typing.TYPE_CHECKING:\n    import time"),
        ("clonos.graph.plan", "from __future__ import annotations\nimport clonos.core.plan"),
        ("clonos.api.job", "def run():\n    from clonos.cluster import run"),
        ("clonos.cli.story", "import clonos\nfrom clonos import Job, __version__"),
        ("clonos", "from .api import Job"),
    ],
)
def test_what_is_allowed_passes(module, source):
    assert violations(source, module, is_package=module == "clonos") == []


@pytest.mark.parametrize(
    ("source", "is_allowed"),
    [
        ("import clonos\nfrom clonos import Job, causal", True),
        ("from clonos.errors import ClonosError", True),
        ("from clonos import cluster", False),
        ("from clonos.sources import files", True),
        ("from clonos.sources.spool import Spool", False),
        ("from clonos.core.plan import Plan", False),
        ("import clonos.spark.slots", False),
    ],
)
def test_examples_use_what_users_have(source, is_allowed):
    assert (reaches_inside(source, "examples.one", set()) == []) is is_allowed


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Groups of modules that lead to each other (the strongly connected components)."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        found, new = set[str](), {module}
        while new:
            new = {after for one in new for after in graph[one]} - found
            found |= new
        reached[module] = found
    groups = {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }
    return sorted(groups, key=sorted)


def import_graph(package: Path) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports, for types only or not."""
    found = {module: path for path, module in modules(package)}
    graph: dict[str, set[str]] = {}
    for module, path in found.items():
        parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
        graph[module] = set()
        for name, _, _ in imports(ast.parse(path.read_text("utf-8")), parent, types=True):
            target = name if name in found else name.rpartition(".")[0]
            if target in found and target not in {module, package.name}:
                graph[module].add(target)
    return graph


@pytest.mark.parametrize("folder", ["src/clonos", "benchmarks/src/clonos_bench", "examples"])
def test_no_modules_import_each_other_without_a_reason(folder):
    found = circles(import_graph(ROOT / folder))
    assert not [circle for circle in found if not any(circle <= known for known in CIRCLES)]


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"d"}, "e": {"a"}}
    assert circles(graph) == [frozenset("bc"), frozenset("d")]


TESTS_OF = {"bench", "nexmark", "demo", "docs"}
"""Folders of tests of what lies beside the package."""


def test_tests_lie_where_what_they_test_lies():
    layers = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    # Installs and submits all of it; what all adapters must fulfil; judges both executions.
    of_all = {"deploy", "ports", "oracle"}
    assert folders <= layers | TESTS_OF | of_all


def clock_readings(source: str) -> list[int]:
    """Lines of `source` that mention a method that reads the clock."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS
    ]


def test_the_core_reads_no_clock():
    for path in sorted((PACKAGE / "core").glob("*.py")):
        assert not clock_readings(path.read_text("utf-8")), path.name


def test_a_reading_of_the_clock_is_found():
    assert clock_readings("from datetime import datetime\nx = datetime.now()") == [2]
