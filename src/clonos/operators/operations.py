"""Operations: what users write, as data that an execution translates.

Tasks are one execution: :func:`clonos.operators.make.make_operator` turns an operation into a
task's operator. Spark's own plans are the other: :mod:`clonos.dataframes` turns it into a
DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from clonos.columns.formula import Expression, ReadBy
from clonos.operators.aggregates import Aggregate
from clonos.operators.by_key.join import Always, Bound
from clonos.operators.by_key.look_up import SideTable, looked_up
from clonos.operators.by_key.outer_join import joined_schema
from clonos.operators.calls.service import Policy
from clonos.operators.process.process import Process
from clonos.operators.stateless.columns import Projection
from clonos.operators.windows.content import Content, Folded, Ranking, Top
from clonos.operators.windows.kinds import Fixed, Session, Window, is_event_time

Function = Callable[..., Any]


class Operation:
    """The base class: a frozen dataclass that is pickled and sent to slots.

    Fields with ``compare=False`` are for the driver only: they are neither pickled nor part of a
    checkpoint's identity.
    """

    @property
    def settings(self) -> list[Any]:
        """Its plain values, and those in its windows, aggregates and parts. They show whether a
        checkpoint belongs to this graph."""
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]  # of every subclass
        found = [_setting(getattr(self, name)) for name in fields if fields[name].compare]
        return [value for value in found if value != []]

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows, or of things made from rows, that it keeps as state."""
        return ()

    @property
    def waits_for_time(self) -> bool:
        """Whether rows stay in its state until event time has passed them."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]  # of every subclass
        return {name: v if fields[name].compare else None for name, v in self.__dict__.items()}


def _setting(value: Any) -> Any:
    """A plain value, or the plain values in it; an empty list for anything else."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(kind := getattr(value, "fingerprint", None), str):
        return kind
    if isinstance(value, Operation):
        return value.settings
    if isinstance(value, Mapping):
        return [[str(key), _setting(held)] for key, held in value.items()]
    if isinstance(value, (tuple, list)):
        kind = [type(value).__name__] if hasattr(value, "_fields") else []  # the kind of window
        return [*kind, *(_setting(held) for held in value)]
    return []


@dataclass(frozen=True)
class PassOn(Operation):
    """Passes all rows on: the head of a union, and of most sources and sinks."""


@dataclass(frozen=True)
class Widen(PassOn):
    """Passes all rows on as rows of `schema`, in which more may be null than in theirs."""

    schema: pa.Schema


@dataclass(frozen=True)
class PassVersions(Operation):
    """The head of a source of versions of a table."""


@dataclass(frozen=True)
class Map(Operation):
    """``map``. ``is_declared``: here and below, the user says that `fn` is deterministic."""

    fn: Function
    schema: pa.Schema
    is_declared: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class FlatMap(Operation):
    """``flat_map``."""

    fn: Function
    schema: pa.Schema
    is_declared: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Filter(Operation):
    """``filter`` with a function."""

    fn: Function
    is_declared: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class MapBatches(Operation):
    """``map_batches``."""

    fn: Function
    schema: pa.Schema
    is_declared: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class WithColumn(Operation):
    """``with_column``: `column` is computed from the columns `of`; `schema`: of the result."""

    fn: Function
    of: tuple[str, ...]
    column: str
    schema: pa.Schema
    is_declared: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class MapAsync(Operation):
    """``map_async``."""

    policy: Policy
    given: pa.Schema
    schema: pa.Schema
    keys: tuple[str, ...]
    then: Mapping[str, Any]

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.given,)


@dataclass(frozen=True)
class ForEachAsync(Operation):
    """``for_each_async``: the function gets the columns `of`, or the row if `of` is empty."""

    policy: Policy
    given: pa.Schema
    of: tuple[str, ...]
    keys: tuple[str, ...]
    then: Mapping[str, Any]

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.given,)


@dataclass(frozen=True)
class WithColumnAsync(Operation):
    """``with_column_async``."""

    policy: Policy
    given: pa.Schema
    of: tuple[str, ...]
    column: str
    schema: pa.Schema
    keys: tuple[str, ...]
    then: Mapping[str, Any]

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.given,)


@dataclass(frozen=True)
class Where(Operation):
    """``where``: a condition, as a formula and as it was given to Spark."""

    condition: Expression
    given: Any = field(default=None, compare=False)
    read_by: ReadBy | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Project(Operation):
    """``select``, ``withColumn``, ...: columns, as formulas and as Spark was given them.

    ``choose``: computes them from a DataFrame; None if they are only chosen and renamed.
    """

    projection: Projection
    choose: Function | None = field(default=None, compare=False)
    read_by: ReadBy | None = field(default=None, compare=False)


@dataclass(frozen=True)
class WithWatermark(Operation):
    """``with_watermark``."""

    column: str
    delay_ms: int
    idle_ms: int | None


@dataclass(frozen=True)
class LookUp(Operation):
    """``look_up``: `table_on` of the table is equal to `on` of the rows."""

    schema: pa.Schema
    on: tuple[str, ...]
    table: pa.RecordBatch | SideTable
    table_on: tuple[str, ...]
    is_left: bool
    changes: bool

    @property
    def output(self) -> pa.Schema:
        """Of what comes out."""
        return looked_up(self.schema, self.table.schema, self.table_on, is_left=self.is_left)

    def showing(self, table: pa.RecordBatch) -> LookUp:
        """The same operation with the content of its table."""
        return replace(self, table=table)


@dataclass(frozen=True)
class AggregateWindows(Operation):
    """``agg`` of a window. ``pre_aggregate``: fold rows before the shuffle, if that is exact."""

    schema: pa.Schema
    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]
    where: str
    pre_aggregate: bool

    def content(self) -> Content:
        """What the windows hold."""
        return self._folded()

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.content().schema,)

    @property
    def waits_for_time(self) -> bool:
        return is_event_time(self.window)

    @property
    def folds_early(self) -> bool:
        """Whether rows are folded before the shuffle."""
        return self.pre_aggregate and self._folded().is_exact

    def _folded(self) -> Folded:
        return Folded(self.schema, self.keys, self.window, dict(self.aggregates), self.where)


@dataclass(frozen=True)
class TopOfWindows(Operation):
    """``top`` of a window."""

    schema: pa.Schema
    keys: tuple[str, ...]
    window: Window
    number: int
    by: tuple[Ranking, ...]
    ties: bool

    def content(self) -> Content:
        """See :meth:`AggregateWindows.content`."""
        return Top(self.schema, self.keys, self.window, self.number, self.by, ties=self.ties)

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.content().schema,)

    @property
    def waits_for_time(self) -> bool:
        return is_event_time(self.window)

    @property
    def folds_early(self) -> bool:
        """See :attr:`AggregateWindows.folds_early`."""
        return True


@dataclass(frozen=True)
class EarlyPart(Operation):
    """The part of a window operation before the shuffle. Only compiled jobs have it."""

    of: AggregateWindows | TopOfWindows


@dataclass(frozen=True)
class LatePart(Operation):
    """The part of a window operation behind an :class:`EarlyPart`."""

    of: AggregateWindows | TopOfWindows

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.of.content().schema,)

    @property
    def waits_for_time(self) -> bool:
        return self.of.waits_for_time


@dataclass(frozen=True)
class RowsOfWindows(Operation):
    """``rows`` of a window."""

    schema: pa.Schema
    keys: tuple[str, ...]
    window: Fixed | Session

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.schema,)

    @property
    def waits_for_time(self) -> bool:
        return is_event_time(self.window)


@dataclass(frozen=True)
class Join(Operation):
    """``join``; `how` is one of :data:`clonos.operators.by_key.outer_join.HOWS`."""

    schemas: tuple[pa.Schema, pa.Schema]
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    bounds: tuple[Bound, Bound]
    how: str = "inner"

    @property
    def output(self) -> pa.Schema:
        """Of what comes out."""
        return joined_schema(self.schemas, self.how)

    @property
    def passes_event_time(self) -> bool:
        """Whether event time advances downstream; not if rows may wait for partners for ever."""
        return self.how == "inner" or not isinstance(self.bounds[0], Always)

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return self.schemas

    @property
    def waits_for_time(self) -> bool:
        return not isinstance(self.bounds[0], Always)


@dataclass(frozen=True)
class Deduplicate(Operation):
    """``deduplicate``; without `time`, keys are remembered for ever."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str | None
    within_ms: int

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (pa.schema([self.schema.field(key) for key in self.keys]),)


@dataclass(frozen=True)
class InOrder(Operation):
    """``in_order``."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    ties: tuple[str, ...]

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        return (self.schema,)

    @property
    def waits_for_time(self) -> bool:
        return True


@dataclass(frozen=True)
class Last(Operation):
    """``last``."""

    schema: pa.Schema
    keys: tuple[str, ...]
    number: int
    aggregates: tuple[tuple[str, Aggregate], ...]
    where: str

    @property
    def keeps(self) -> tuple[pa.Schema, ...]:
        wanted = [*self.keys, *(made.column for _, made in self.aggregates if made.column)]
        return (pa.schema([self.schema.field(name) for name in dict.fromkeys(wanted)]),)

    @property
    def output(self) -> pa.Schema:
        """Of what comes out."""
        folds = [(name, made.fold(self.schema, self.where)) for name, made in self.aggregates]
        return pa.schema([*self.schema, *(pa.field(name, fold.data_type) for name, fold in folds)])


@dataclass(frozen=True)
class TransformRows(Operation):
    """``transformWithState``; `states`: the processor's declared states."""

    processor: Any
    keys: tuple[str, ...]
    schema: pa.Schema
    mode: str
    time: str | None
    states: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class ProcessRows(Operation):
    """``process``."""

    process: Process
    keys: tuple[str, ...]
    schema: pa.Schema
    in_flight: int
    effects: bool
