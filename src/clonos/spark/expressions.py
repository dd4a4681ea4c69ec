"""Column expressions of Spark's, as formulas for tasks.

Spark parses and analyses them: an empty DataFrame with the stream's schema gets the columns, and
this module walks the analysed tree in the driver's JVM. Only the tree has the class, type and mode
of every part; its printed form and its JSON do not. Parts without an exact equivalent in tasks are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql.types import BinaryType, StructField, StructType

from clonos.columns import casts
from clonos.columns.formula import (
    LAZY,
    Apply,
    Called,
    Column,
    Constant,
    Expression,
    ReadBy,
    apply,
    in_pairs,
)
from clonos.columns.functions import FUNCTIONS, Function
from clonos.columns.kinds import DATE, INTERVAL, MOMENT, SIMPLE, STRING, ZONED, kind_of
from clonos.columns.schema import columns_like, parse_type, spark_type
from clonos.columns.user_functions import ARROW, KNOWN
from clonos.errors import BadSchema, NeedsSpark, NotInTasks, UnknownColumn, WrongType
from clonos.spark.session import active, require_analysis

_CATALYST: Final = "org.apache.spark.sql.catalyst.expressions"
_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
_ELSEWHERE: Final = (
    "apply it to the DataFrame before it becomes a source, or write a function: "
    "with_column(...), map(...), filter(lambda row: ...)"
)
_RANDOM: Final = "write a function that takes ctx and asks ctx.random: it is the same on replay"
_CLOCK: Final = "write a function that takes ctx and asks ctx.clock, which is logged"
_REFUSED: Final = {
    "Rand": _RANDOM,
    "Randn": _RANDOM,
    "RandStr": _RANDOM,
    "Uniform": _RANDOM,
    "Uuid": _RANDOM,
    "Shuffle": _RANDOM,
    "CurrentTimestamp": _CLOCK,
    "Now": _CLOCK,
    "LocalTimestamp": _CLOCK,
    "CurrentDate": _CLOCK,
    "CurDateExpressionBuilder": _CLOCK,
    "CurrentTime": _CLOCK,
    "CurrentBatchTimestamp": _CLOCK,
}
"""Expressions with another value each time, and what to write instead."""

_INSTEAD: Final = {
    "NamedArgumentExpression": "give a function its arguments by position",
    "ScalaUDF": "apply it to the DataFrame before it becomes a source",
}
"""What to write instead of an expression that is not in the table."""

_SPECIAL_TEXT: Final = re.compile(r"\s*(?:now|today|tomorrow|yesterday|epoch)\b", re.IGNORECASE)
_OF_TODAY: Final = re.compile(r"\s*(?:T|\d+:)")
"""A time of day, to which Spark adds the day on which it reads it."""
_LITERAL: Final = re.compile(r"(?:date|timestamp(?:_ntz|_ltz)?)\b", re.IGNORECASE)
_FIXED: Final = re.compile(
    r"(?:date|timestamp(?:_ntz|_ltz)?)\s*r?['\"]\s*(?:[+-]?\d{4}|epoch\b)", re.IGNORECASE
)
_OF_TIME: Final = frozenset({"date", "timestamp", "timestamp_ntz"})

_ANSI: Final = "set spark.sql.ansi.enabled to true"

_DEEPEST: Final = 100
"""How many expressions may be within each other: Python computes them by recursion, too."""

_PARTS: Final = "make columns of parts of it before: withColumn(...)"

_FUNCTION: Final = 'give the function itself: with_column("name type", fn, "column"), or filter(fn)'
_TIMES: Final = f"{_FUNCTION}; or use an arrow_udf, in a session whose zone is UTC"

_MODES: Final = {
    **dict.fromkeys(
        ["Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod", "Cast"],
        "evalMode",
    ),
    "UnaryMinus": "failOnError",
    "Abs": "failOnError",
}
"""The attribute by which a part says whether it raises."""


def projected(
    schema: pa.Schema, choose: Callable[[Any], Any], where: str
) -> list[tuple[str, Expression]]:
    """The columns of ``choose(frame)``, where `frame` has the rows of a stream.

    Parameters
    ----------
    schema
        Of the stream.
    choose
        Such as ``lambda frame: frame.select("a", F.upper("b"))``.
    where
        The operator, for errors.

    Raises
    ------
    NotInTasks
        Some part cannot be computed in tasks.
    NeedsSpark
        There is no session.
    UnknownColumn, WrongType
        Spark cannot read it.
    """
    walker, frame = _begin(schema, where)
    with _of_users(schema, where):
        plan = choose(frame)._jdf.queryExecution().analyzed()  # noqa: SLF001
    _require_plan(plan, "Project", where)
    named = _elements(plan.projectList())
    return [(part.name(), walker.column(part)) for part in named]


def condition(schema: pa.Schema, given: Any, where: str) -> Expression:
    """The condition of ``frame.where(given)``; see :func:`projected`."""
    walker, frame = _begin(schema, where)
    with _of_users(schema, where):
        plan = frame.where(given)._jdf.queryExecution().analyzed()  # noqa: SLF001
    _require_plan(plan, "Filter", where)
    return walker.whole(plan.condition())


@contextmanager
def _of_users(schema: pa.Schema, where: str) -> Iterator[None]:
    """Raise what Spark says of an expression as a mistake in the job's definition."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        said = str(error).strip().partition("\n")[0].partition(" SQLSTATE: ")[0]
        said = said.partition(". ")[0].rstrip(".")
        known: dict[str, str] = error.getMessageParameters() or {}
        if said.startswith("[MISSING_ATTRIBUTES"):
            name = known.get("missingAttributes", "").partition('", "')[0].strip('"')
            remedy = f'write F.col("{name}"): a stream has no DataFrame\'s columns'
            raise UnknownColumn(said, where=where, remedy=remedy) from error
        if said.startswith("[UNRESOLVED_COLUMN"):
            remedy = columns_like(schema, known.get("objectName", "").strip("`"))
            raise UnknownColumn(said, where=where, remedy=remedy) from error
        remedy = "correct the expression; Spark's own error, which says more, is the cause of this"
        raise WrongType(said, where=where, remedy=remedy) from error
    except Py4JJavaError as error:
        kind = _class_of(error.java_exception)
        if kind != "StackOverflowError":
            raise
        raise NotInTasks(
            f"the expression is too deep for Spark, too: {kind}", where=where, remedy=_PARTS
        ) from error


def read_by(spark: Any = None) -> ReadBy:
    """How a session reads expressions now; by default the active session."""
    conf = (active() if spark is None else spark).conf
    is_ansi = str(conf.get("spark.sql.ansi.enabled")).lower() == "true"
    return ReadBy(str(conf.get("spark.sql.session.timeZone")), is_ansi)


def _begin(schema: pa.Schema, where: str) -> tuple[_Walker, Any]:
    try:
        spark = active()
    except NeedsSpark as error:
        raise NeedsSpark(
            "a column expression is read by Spark, and there is no session",
            where=where,
            remedy="create one before the job is defined: clonos.spark.session.get_or_create()",
        ) from error
    require_analysis(spark, where)
    from pyspark.sql.classic.dataframe import DataFrame

    # A type unknown to Spark becomes one that no expression in tasks accepts.
    fields = [StructField(f.name, spark_type(f.type) or BinaryType()) for f in schema]
    session: Any = spark._jsparkSession  # noqa: SLF001
    jvm: Any = spark._jvm  # noqa: SLF001
    java_schema = session.parseDataType(StructType(fields).json())
    frame = DataFrame(session.createDataFrame(jvm.java.util.ArrayList(), java_schema), spark)
    output = _elements(frame._jdf.queryExecution().analyzed().output())  # noqa: SLF001
    known = {part.exprId().id(): field for part, field in zip(output, schema, strict=True)}
    return _Walker(spark, known, where), frame


def _require_plan(plan: Any, kind: str, where: str) -> None:
    made = plan.getClass().getSimpleName()
    below = plan.child() if made == kind else plan
    if below.getClass().getSimpleName() != "LocalRelation":
        while below.getClass().getSimpleName() == "Project":  # around a window
            below = below.child()
        raise NotInTasks(
            "the expression needs more than one row at a time, or makes several: "
            + below.getClass().getSimpleName(),
            where=where,
            remedy="aggregates are for windows: key_by(...).window(...).agg(...); several rows of "
            "one are made by flat_map",
        )


def _class_of(node: Any) -> str:
    """The class of an expression or plan; its own name may be that of another one."""
    return str(node.getClass().getSimpleName())


def _elements(seq: Any) -> list[Any]:
    return [seq.apply(i) for i in range(seq.size())]


def _written(part: Any) -> str:
    """What the user has written of a part; empty if it was not parsed."""
    origin = part.origin()
    places = origin.sqlText(), origin.startIndex(), origin.stopIndex()
    if not all(place.isDefined() for place in places):
        return ""
    text, start, stop = (place.get() for place in places)  # in units of Java's texts
    units = str(text).encode("utf-16-le")[2 * start : 2 * stop + 2]
    return units.decode("utf-16-le", "replace").strip()


class _Walker:
    """Turns analysed expressions into formulas."""

    def __init__(self, spark: Any, known: Mapping[int, pa.Field], where: str) -> None:
        self._gateway = spark.sparkContext._gateway  # noqa: SLF001
        self._no_row = spark._jvm.org.apache.spark.sql.catalyst.InternalRow.empty()  # noqa: SLF001
        self._known = known
        session = read_by(spark)
        self._zone, self._is_ansi = session.zone, session.ansi
        self._where = where
        self._types: dict[str, pa.DataType] = {}
        self._common: dict[int, Expression] = {}
        self._functions: dict[bytes, Callable[..., Any]] = {}
        self._depth = 0

    def column(self, part: Any) -> Expression:
        """A named expression; a column as it is may be of any type."""
        while _class_of(part) == "Alias":
            part = part.child()
        made = self.whole(part)
        if isinstance(made, Apply) and made.function == "CreateNamedStruct":
            return made
        if not isinstance(made, Column) and kind_of(made.type) not in SIMPLE:
            raise self._refusal(part, f"its type is {made.type}")
        return made

    def whole(self, part: Any) -> Expression:
        """One expression, such as a condition."""
        if not part.deterministic():
            self._refuse_unrepeatable(part)
        return self.walk(part)

    def walk(self, part: Any) -> Expression:
        """A part with all its children. Each call of the JVM takes a while, so there are few."""
        if self._depth == _DEEPEST:
            raise NotInTasks(
                f"the expression has more than {_DEEPEST} others within each other",
                where=self._where,
                remedy=_PARTS,
            )
        self._depth += 1
        made = self._walked(part)
        self._depth -= 1
        return made

    def _walked(self, part: Any) -> Expression:
        name = _class_of(part)
        if name == "AttributeReference":
            field = self._known[part.exprId().id()]
            return Column(field.name, field.type)
        if name in _REFUSED:
            raise self._refusal(part, "it has another value each time", _REFUSED[name])
        if part.foldable():
            constant = self._folded(part)
            if constant is not None:
                return constant
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, part)
        if name in FUNCTIONS or name in LAZY:
            arguments = [self.walk(child) for child in _elements(part.children())]
            return self.made(part, name, arguments)
        if is_instance_of(self._gateway, part, f"{_CATALYST}.RuntimeReplaceable"):
            return self.walk(part.replacement())
        raise self._refusal(part, f"there is no {name} in tasks", _INSTEAD.get(name, ""))

    def made(self, part: Any, name: str, arguments: Sequence[Expression]) -> Expression:
        """A function, if it is exact for these arguments."""
        result = self._type(part)
        if name in LAZY:
            if any(kind_of(argument.type) not in SIMPLE for argument in arguments):
                raise self._refusal(part, _types_text(arguments))
            return apply(name, arguments, result)
        function = FUNCTIONS[name]
        types = [argument.type for argument in arguments]
        constants = [a.scalar if isinstance(a, Constant) else None for a in arguments]
        if not function.accepts(types, result):
            raise self._refusal(part, _types_text(arguments))
        if not function.fits(constants):
            raise self._refusal(part, "some argument must be constant there, and of a plain form")
        pattern = constants[1] if name == "Like" else None
        if pattern is not None and part.escapeChar() in str(pattern.as_py()):
            raise self._refusal(part, "the pattern escapes a character")
        if name == "In" and any(argument.raises for argument in arguments[1:]):
            raise self._refusal(part, "a value of the list can raise")
        self._require_zone(part, function, types, result)
        if name == "Cast" and types == [result]:
            return arguments[0]
        if not function.can_raise(types, result, constants):
            return apply(name, arguments, result)
        if name in _MODES:
            self._require_ansi(part, getattr(part, _MODES[name])())
        if name in ("Floor", "Ceil"):  # which ask the session when they are computed
            self._require_ansi(part, self._is_ansi)
        return apply(name, arguments, result, part.sql())

    def _folded(self, part: Any) -> Constant | None:
        """The value of a constant part, computed by Spark now; None if it cannot be."""
        self._refuse_clocks(part)
        try:
            data_type = self._type(part)
            kind = kind_of(data_type)
            if kind not in SIMPLE and kind != INTERVAL:
                return None
            value = part.eval(self._no_row)
        except (Py4JError, PySparkException):
            return None
        constant = _scalar(value, data_type, kind)
        try:
            constant.as_py()
        except (OverflowError, ValueError):
            raise self._refusal(part, "Python knows only the years 1 to 9999") from None
        return Constant(constant)

    def _refuse_unrepeatable(self, part: Any) -> None:
        """Refuse the smallest part that is not deterministic."""
        for child in _elements(part.children()):
            if not child.deterministic():
                self._refuse_unrepeatable(child)
        remedy = _REFUSED.get(_class_of(part), "")
        raise self._refusal(part, "it has another value each time", remedy)

    def _refuse_clocks(self, part: Any) -> None:
        name = _class_of(part)
        if name in _REFUSED:
            raise self._refusal(part, "it has another value each time", _REFUSED[name])
        if name in ("Cast", "Literal") and part.dataType().catalogString() in _OF_TIME:
            self._refuse_special(part, name)
        for child in _elements(part.children()):
            self._refuse_clocks(child)

    def _refuse_special(self, part: Any, name: str) -> None:
        """Refuse texts that stand for the current day or time: whoever reads the expression again,
        for a plan or at the next start of the job, would find another one."""
        if name == "Literal":  # only what the user has written still says so
            written = _written(part)
            if _LITERAL.match(written) and not _FIXED.match(written):
                why = f"{written} has another value each time that it is read"
                raise self._refusal(part, why, _CLOCK)
            return
        child = part.child()
        kind = child.dataType().catalogString()
        text = self._text(child) if kind == "string" and child.foldable() else ""
        if _SPECIAL_TEXT.match(text):  # Spark replaces it only then
            raise self._refusal(part, "Spark reads it when it plans a query", _CLOCK)
        is_zoned = part.dataType().catalogString() == "timestamp"
        if kind.startswith("time(") or (is_zoned and _OF_TODAY.match(text)):
            raise self._refusal(part, "Spark adds the day on which it reads it", _CLOCK)

    def _text(self, part: Any) -> str:
        """The value of a constant text; empty if it cannot be computed."""
        try:
            return str(part.eval(self._no_row))
        except (Py4JError, PySparkException):
            return ""

    def _type(self, part: Any) -> pa.DataType:
        text = part.dataType().catalogString()
        if text not in self._types:
            is_interval = text.startswith("interval ") and not {"year", "month"} & set(text.split())
            try:
                self._types[text] = pa.duration("us") if is_interval else parse_type(text)
            except BadSchema:
                raise self._refusal(part, f"its type is {text}") from None
        return self._types[text]

    def _require_zone(
        self, part: Any, function: Function, types: Sequence[pa.DataType], result: pa.DataType
    ) -> None:
        is_cast = function is FUNCTIONS["Cast"] and casts.is_of_zone(types[0], result)
        is_of_zone = function.is_of_zone and kind_of(types[-1 if result == types[-1] else 0])
        if (is_cast or is_of_zone == ZONED) and self._zone not in _UTC:
            raise self._refusal(
                part,
                f"it depends on the session's zone, {self._zone}",
                'set spark.sql.session.timeZone to "UTC", or use timestamp_ntz',
            )

    def _require_ansi(self, part: Any, mode: Any) -> None:
        text = mode if isinstance(mode, bool) else mode.toString()
        if text not in (True, "ANSI"):
            raise self._refusal(
                part,
                "it does not raise where a value does not fit: it is a try_ function, or ANSI "
                "mode is off",
                f"{_ANSI} and ask first: case when ... then ... end",
            )

    def _refusal(self, part: Any, why: str, remedy: str = "") -> NotInTasks:
        return NotInTasks(
            f"{part.sql()} cannot be computed in tasks exactly as Spark would: {why}",
            where=self._where,
            remedy=remedy or _ELSEWHERE,
        )

    def with_common(self, part: Any) -> Expression:
        """``With``: parts that are used several times."""
        for one in _elements(part.defs()):
            self._common[one.id().id()] = self.walk(one.child())
        return self.walk(part.child())

    def common(self, part: Any) -> Expression:
        """One of the parts of ``With``."""
        return self._common[part.id().id()]

    def case_of(
        self, part: Any, condition: Expression, yes: Expression, no: Expression
    ) -> Expression:
        """``if``."""
        return self.made(part, "CaseWhen", [condition, yes, no])

    def if_(self, part: Any) -> Expression:
        """``if(a, b, c)``."""
        return self.case_of(part, *map(self.walk, _elements(part.children())))

    def case(self, part: Any) -> Expression:
        """``case``, with a null if there is no ``else``."""
        arguments = [self.walk(child) for child in _elements(part.children())]
        if len(arguments) % 2 == 0:
            arguments.append(Constant(pa.scalar(None, self._type(part))))
        return self.made(part, "CaseWhen", arguments)

    def all_of(self, part: Any) -> Expression:
        """``and`` or ``or``: a long chain of them does not become a deep expression."""
        name = _class_of(part)
        chain = [part]  # from the right to the left
        while _class_of(chain[-1]) == name:
            both = chain.pop()
            chain += [both.right(), both.left()]
        made = [self.walk(one) for one in reversed(chain)]
        return in_pairs(made, lambda left, right: self.made(part, name, [left, right]))

    def is_in(self, part: Any) -> Expression:
        """``in``; where there is nothing in which a value could be, Spark does not look at it."""
        arguments = _elements(part.children())
        if len(arguments) > 1:
            return self.made(part, "In", [self.walk(argument) for argument in arguments])
        if not self._is_ansi:
            raise self._refusal(part, "it is null for null, as ANSI mode is off", _ANSI)
        return Constant(pa.scalar(value=False))

    def null_if(self, part: Any) -> Expression:
        """What ``nullif(a, b)`` becomes: null if the condition is true, else the value."""
        is_equal, value = map(self.walk, _elements(part.children()))
        return self.case_of(part, is_equal, Constant(pa.scalar(None, value.type)), value)

    def nan_or(self, part: Any) -> Expression:
        """``nanvl(a, b)``."""
        value, other = map(self.walk, _elements(part.children()))
        is_nan = apply("IsNaN", [value], pa.bool_())
        return self.case_of(part, is_nan, other, value)

    def field(self, part: Any) -> Expression:
        """A field of a struct."""
        number = Constant(pa.scalar(part.ordinal(), pa.int32()))
        return self.made(part, "GetStructField", [self.walk(part.child()), number])

    def called(self, part: Any) -> Expression:
        """A Python function."""
        kind = int(part.evalType())
        if kind not in KNOWN:
            raise self._refusal(part, f"it is not a function of a row (evalType {kind})", _FUNCTION)
        arguments = tuple(self.walk(child) for child in _elements(part.children()))
        result = self._type(part)
        for data_type in (*(argument.type for argument in arguments), result):
            known = kind_of(data_type)
            if known not in SIMPLE:
                raise self._refusal(part, f"{data_type} is given or returned", _FUNCTION)
            if known in MOMENT and (kind != ARROW or (known == ZONED and self._zone not in _UTC)):
                raise self._refusal(
                    part, f"Spark's functions see {data_type} in the zone of a process", _TIMES
                )
        return Called(str(part.name()), self._function(part), kind, arguments, result)

    def _function(self, part: Any) -> Callable[..., Any]:
        """The user's function, taken out of what Spark would send to its workers."""
        try:
            command = bytes(part.func().command().unsafeArray())
            if command not in self._functions:  # the same object for the same function
                self._functions[command], _ = cloudpickle.loads(command)
        except Exception as error:
            raise self._refusal(
                part,
                "the function cannot be taken out of it: it is large, or not from this process",
                _FUNCTION,
            ) from error
        return self._functions[command]

    def below(self, part: Any) -> Expression:
        """The child of a mere wrapper."""
        return self.walk(part.child())


_SPECIAL: Final[Mapping[str, Callable[[_Walker, Any], Expression]]] = {
    "Alias": _Walker.below,
    "UnaryPositive": _Walker.below,
    "With": _Walker.with_common,
    "CommonExpressionRef": _Walker.common,
    "If": _Walker.if_,
    "CaseWhen": _Walker.case,
    "And": _Walker.all_of,
    "Or": _Walker.all_of,
    "In": _Walker.is_in,
    "NullIfResult": _Walker.null_if,
    "NaNvl": _Walker.nan_or,
    "GetStructField": _Walker.field,
    "PythonUDF": _Walker.called,
}
"""Parts that are not simply functions of their children."""


def _scalar(value: Any, data_type: pa.DataType, kind: str) -> pa.Scalar:
    """Spark's internal value as Arrow's."""
    if value is None:
        return pa.scalar(None, data_type)
    if kind == STRING:
        return pa.scalar(value.toString(), data_type)
    if kind == DATE:
        return pa.array([value], pa.int32()).view(data_type)[0]
    if kind in MOMENT or kind == INTERVAL:
        return pa.array([value], pa.int64()).view(data_type)[0]
    if hasattr(value, "toString"):
        value = Decimal(value.toString())
    return pa.scalar(value, data_type)


def _types_text(arguments: Sequence[Expression]) -> str:
    given = ", ".join(str(argument.type) for argument in arguments)
    return f"not of ({given})"
