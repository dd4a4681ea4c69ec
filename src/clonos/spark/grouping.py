"""Takes apart the arguments of ``groupBy`` and ``agg``: which function, of which columns.

Spark cannot analyse a window of a stream that is not its own, so this module looks at the column as
it was written. It recognizes parts by their class, and refuses all others.
"""

from __future__ import annotations

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
        Names of columns, constants, and PySpark's columns for other expressions. ``*`` is a 1.
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
        name = str(node.nameParts().mkString("."))
        return Asked(alias or name, "", (name,), _column(node))
    if kind != "UnresolvedFunction":
        raise NotInTasks(
            f"{node.sql()} is not understood there",
            where=where,
            remedy="write it with pyspark.sql.functions, such as F.sum('price').alias('total')",
        )
    function = str(node.functionName()).lower()
    if node.isDistinct():
        function += " distinct"
    given = node.arguments()
    arguments = tuple(_argument(given.apply(i)) for i in range(given.size()))
    return Asked(alias or _spark_name(function, arguments), function, arguments, _column(node))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _argument(node: Any) -> Any:
    kind = _kind(node)
    if kind == "UnresolvedStar":
        return Constant(1)
    if kind == "UnresolvedAttribute":
        return str(node.nameParts().mkString("."))
    if kind == "Literal":
        return Constant(node.value())
    return _column(node)


def _column(node: Any) -> Any:
    from pyspark.sql.classic.column import Column

    jvm: Any = active()._jvm  # noqa: SLF001 - see above
    return Column(jvm.org.apache.spark.sql.Column(node))


def _spark_name(function: str, arguments: tuple[Any, ...]) -> str:
    """Spark's name for a function of one column."""
    if len(arguments) != 1:
        return ""
    (of,) = arguments
    if isinstance(of, Constant):
        return f"{function}({of.value})"
    return f"{function}({of})" if isinstance(of, str) else ""
