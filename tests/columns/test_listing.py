"""The documentation lists the functions that there are."""

from __future__ import annotations

from pathlib import Path

from clonos.columns.evaluation import _LAZILY
from clonos.columns.formula import LAZY
from clonos.columns.functions import FUNCTIONS
from clonos.columns.listing import LAZY_SQL, table
from tests.columns.parity import CASES

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def test_the_list_is_current():
    _, _, rest = PAGE.read_text("utf-8").partition("<!-- functions -->\n")
    listed, end, _ = rest.partition("\n<!-- end -->")
    assert end
    assert listed == table(), "run make columns"


def test_all_functions_are_in_the_list():
    assert LAZY_SQL.keys() == LAZY == _LAZILY.keys()
    lines = table().splitlines()[2:]
    assert sum("cast(" in line for line in lines) == 8
    assert len(lines) == len(LAZY) + len(FUNCTIONS) - 1 + 8
    assert all(line.split(" | ")[1].strip() for line in lines), "each takes something"


def test_every_function_is_compared_with_spark():
    text = " ".join(case for cases in CASES.values() for case in cases)
    left_out = [function.sql for function in FUNCTIONS.values() if _name(function.sql) not in text]
    assert left_out == ["a.b"], "a field of a struct is taken in tests/spark/test_expressions.py"


def _name(sql: str) -> str:
    """What tells the function in a text: its name with a bracket, or its sign."""
    name, bracket, _ = sql.partition("(")
    return name + bracket if bracket else sql.replace("b%'", "").replace("5 minutes", "")
