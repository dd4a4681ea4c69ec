"""Column expressions as data, which tasks compute for a batch with Arrow's kernels.

A formula is made by :mod:`clonos.spark.expressions` from Spark's analysed plan. It needs no JVM,
is pickled with the job, and depends on nothing but the rows. It is computed by
:mod:`clonos.columns.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from clonos.columns.functions import FUNCTIONS

_Part = TypeVar("_Part")

LAZY: Final = frozenset({"And", "Or", "CaseWhen", "Coalesce", "CreateNamedStruct"})
"""Functions that compute their parts only for rows that need them, by Spark's class names."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the batch."""

    name: str
    type: pa.DataType
    raises: bool = False

    @property
    def fingerprint(self) -> str:
        """Identifies it as text, because a checkpoint belongs to one graph."""
        return f"`{self.name}`"


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all rows."""

    scalar: pa.Scalar
    raises: bool = False

    @property
    def type(self) -> pa.DataType:
        """Of the value."""
        return self.scalar.type

    @property
    def fingerprint(self) -> str:
        """See :attr:`Column.fingerprint`."""
        return f"{self.scalar.as_py()!r} {self.type}"


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of expressions.

    ``raises``: the function or an argument can raise; ``text``: the SQL, if so.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: pa.DataType
    text: str
    raises: bool

    @property
    def fingerprint(self) -> str:
        """See :attr:`Column.fingerprint`."""
        given = ", ".join(argument.fingerprint for argument in self.arguments)
        return f"{self.function}({given}) {self.type}"


@dataclass(frozen=True, slots=True)
class Called:
    """A user's function of expressions; see :mod:`clonos.columns.user_functions`.

    ``kind``: Spark's ``evalType``. The function is called for every row and may fail for any, so
    it need not be computed lazily: ``raises`` is False.
    """

    name: str
    fn: Callable[..., Any]
    kind: int
    arguments: tuple[Expression, ...]
    type: pa.DataType
    raises: bool = False

    @property
    def fingerprint(self) -> str:
        """See :attr:`Column.fingerprint`; the function itself may be corrected."""
        given = ", ".join(argument.fingerprint for argument in self.arguments)
        return f"udf {self.name}({given}) {self.type}"


Expression: TypeAlias = Column | Constant | Apply | Called


@dataclass(frozen=True)
class ReadBy:
    """The session's settings when it read an expression, which may change the meaning.

    ``zone``: ``spark.sql.session.timeZone``; ``ansi``: ``spark.sql.ansi.enabled``.
    """

    zone: str
    ansi: bool


def apply(
    function: str, arguments: Sequence[Expression], data_type: pa.DataType, text: str = ""
) -> Apply:
    """A function of the table, or one of :data:`LAZY`, applied to expressions.

    Parameters
    ----------
    text
        The SQL, for errors, if the function itself can raise.

    Examples
    --------
    >>> n = Column("n", pa.int64())
    >>> half = apply("IntegralDivide", [n, Constant(pa.scalar(2))], pa.int64(), "(n div 2)")
    >>> half.fingerprint, half.raises
    ('IntegralDivide(`n`, 2 int64) int64', False)
    """
    raises = any(argument.raises for argument in arguments)
    if not raises and function not in LAZY:
        constants = [a.scalar if isinstance(a, Constant) else None for a in arguments]
        raises = FUNCTIONS[function].can_raise([a.type for a in arguments], data_type, constants)
    return Apply(function, tuple(arguments), data_type, text, raises)


def in_pairs(parts: Sequence[_Part], both: Callable[[_Part, _Part], _Part]) -> _Part:
    """All parts joined two by two, and then these: many of them do not become a deep expression.

    Examples
    --------
    >>> in_pairs(["a", "b", "c"], "({} {})".format)
    '((a b) c)'
    """
    made = list(parts)
    while len(made) > 1:
        pairs = [made[i : i + 2] for i in range(0, len(made), 2)]
        made = [both(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return made[0]


def columns_of(expression: Expression) -> frozenset[str]:
    """The columns that an expression reads."""
    match expression:
        case Column(name):
            return frozenset([name])
        case Apply(arguments=arguments) | Called(arguments=arguments):
            return frozenset().union(*map(columns_of, arguments))
        case _:
            return frozenset()
