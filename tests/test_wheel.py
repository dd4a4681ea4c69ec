"""What is installed is the library, and what it imports is what it asks for."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parent.parent

CONTENTS = {
    "clonos/__init__.py", "clonos/arguments.py", "clonos/blame.py", "clonos/extras.py",
    "clonos/kafka.py", "clonos/named.py", "clonos/options.py", "clonos/py.typed",
    "clonos/pytest_plugin.py",
    "clonos/version.py", "clonos/web.py",
    "clonos/api", "clonos/branch", "clonos/causal", "clonos/cli", "clonos/cluster",
    "clonos/columns",
    "clonos/core", "clonos/dataframes", "clonos/errors", "clonos/exports", "clonos/graph",
    "clonos/nodes", "clonos/operators", "clonos/postgres", "clonos/replay", "clonos/runtime",
    "clonos/simulator", "clonos/sinks", "clonos/sources", "clonos/spark", "clonos/state",
    "clonos/storage", "clonos/testing",
    "clonos/transport", "clonos/upgrade", "clonos/watch",
    "pyspark_clonos/__init__.py", "pyspark_clonos_log/__init__.py",
    "pyspark_clonos_state/__init__.py",
}  # fmt: skip
"""All that the wheel has, by its uppermost folders."""

PAGE = {"page.html", "style.css"}
"""What the wheel has beside Python: the page about a job."""

OPTIONAL = {"tenacity", "cryptography", "psycopg", "confluent_kafka", "paho", "redis", "websockets"}
"""Imported only by what the extras are for."""

WITHIN_PYTEST = {"pytest"}
"""Imports our plugin itself."""

WITH_PYSPARK = {"py4j"}
"""Comes with it, in the same release."""


def test_the_wheel_has_the_library_and_nothing_else():
    builder = WheelBuilder(str(ROOT))
    files = [Path(file.distribution_path) for file in builder.recurse_included_files()]
    assert {"/".join(file.parts[:2]) for file in files} == CONTENTS
    page = {file.name for file in files if file.parent.name == "watch"} & PAGE
    assert page == PAGE
    others = [file for file in files if file.name not in page]
    assert {file.suffix for file in others} <= {".py", ".typed"}


def imported(node):
    """The packages that are imported when this runs; for types only is not counted."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.split(".")[0]
    elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        for child in ast.iter_child_nodes(node):
            yield from imported(child)


def test_what_the_library_imports_is_what_it_depends_on():
    dependencies = WheelBuilder(str(ROOT)).metadata.core.dependencies
    named = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in imported(ast.parse(path.read_text("utf-8")))
    }
    others = named - sys.stdlib_module_names - {"clonos", "pyspark_clonos"}
    assert others - OPTIONAL - WITH_PYSPARK - WITHIN_PYTEST == {
        re.split(r"[^\w-]", line)[0] for line in dependencies
    }
