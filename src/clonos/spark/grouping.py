"""Takes apart the arguments of ``groupBy`` and ``agg``: which function, of which columns.

Spark cannot analyse a window of a stream that is not its own, so this module looks at the column as
it was written. It recognizes parts by their class, and refuses all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clonos.errors import NotInTasks
from clonos.spark.session import active, require_analysis


class Asked(NamedTuple):
    """A column of ``groupBy`` or ``agg``.

    Attributes
    ----------
    name
        Its alias, or Spark's name for it without one; empty: no useful name.
    function
        In lower case; empty: a column, or an expression that is no function.
    arguments
        Names of columns, constants, and PySpark's columns for other expressions, such as fields of
        structs. ``*`` is a 1.
    column
        The whole column, without the alias.
    """

    name: str
    function: str
    arguments: tuple[Any, ...]
    column: Any


class Constant(NamedTuple):
    """A literal."""

    value: Any


def asked(column: Any, where: str) -> Asked:
    """Take a column apart.

    Raises
    ------
    NotInTasks
        It is an expression in SQL, or of another kind.
    NeedsSpark
        There is no session, or none with a JVM.
    """
    require_analysis(active(), where)
    node, alias = column._jc.node(), ""  # noqa: SLF001 - nothing public says what a column is
    if _kind(node) == "Alias":
        alias, node = str(node.name().apply(0)), node.child()
    kind = _kind(node)
    if kind == "UnresolvedAttribute":
        name = str(node.nameParts().last())  # that of a field
        return Asked(alias or name, "", (_argument(node),), _column(node))
    if kind != "UnresolvedFunction":
        raise NotInTasks(
            f"{node.sql()} is not understood there",
            where=where,
            remedy="write it with pyspark.sql.functions, such as F.sum('price').alias('total')",
        )
    function = str(node.functionName()).lower()
    if node.isDistinct():
        function += " distinct"
    given = [node.arguments().apply(i) for i in range(node.arguments().size())]
    arguments = tuple(map(_argument, given))
    return Asked(alias or _spark_name(function, given), function, arguments, _column(node))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _argument(node: Any) -> Any:
    kind = _kind(node)
    if kind == "UnresolvedStar":
        return Constant(1)
    if kind == "UnresolvedAttribute" and node.nameParts().size() == 1:
        return str(node.nameParts().head())
    if kind == "Literal":
        return Constant(node.value())
    return _column(node)


def _column(node: Any) -> Any:
    from pyspark.sql.classic.column import Column

    jvm: Any = active()._jvm  # noqa: SLF001 - see above
    return Column(jvm.org.apache.spark.sql.Column(node))


def _spark_name(function: str, given: Sequence[Any]) -> str:
    """Spark's name for a function of one column."""
    if len(given) != 1:
        return ""
    (of,) = given
    if _kind(of) == "UnresolvedAttribute":
        return f"{function}({of.nameParts().mkString('.')})"
    argument = _argument(of)
    return f"{function}({argument.value})" if isinstance(argument, Constant) else ""
