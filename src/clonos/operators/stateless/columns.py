"""Column expressions: rows filtered by a condition, and columns computed by Arrow's kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from clonos.columns.batches import concat
from clonos.columns.evaluation import computer
from clonos.columns.formula import Apply, Column, Expression, apply, columns_of, in_pairs
from clonos.columns.user_functions import FunctionRaised, prepared
from clonos.errors import ExpressionFailed
from clonos.operators.base import Operator


@dataclass(frozen=True)
class Projection:
    """The output columns of an operator, each with its field, in order.

    Examples
    --------
    >>> swapped = Projection.of(pa.schema({"a": pa.int8(), "b": pa.int8()}), {"x": "b", "a": "a"})
    >>> swapped.schema.names, sorted(swapped.reads(unread={"x"}))
    (['x', 'a'], ['a'])
    """

    columns: tuple[tuple[pa.Field, Expression], ...]

    @classmethod
    def of(cls, schema: pa.Schema, names: dict[str, str]) -> Projection:
        """Columns as they are: new name to old name."""
        fields = {new: schema.field(old) for new, old in names.items()}
        return cls(
            tuple((field.with_name(new), Column(field.name, field.type))
                  for new, field in fields.items())
        )  # fmt: skip

    @property
    def schema(self) -> pa.Schema:
        """The schema of the output rows."""
        return pa.schema([field for field, _ in self.columns])

    @property
    def fingerprint(self) -> str:
        """The projection as text; a checkpoint is bound to its graph by such fingerprints."""
        return ", ".join(f"{field.name}: {made.fingerprint}" for field, made in self.columns)

    def reads(self, unread: Collection[str] = ()) -> frozenset[str]:
        """The columns that it reads if its output columns in `unread` are not needed."""
        return frozenset().union(*(columns_of(made) for _, made in self.without(unread).columns))

    def without(self, unread: Collection[str]) -> Projection:
        """The same without unread columns; one always remains, so that rows can be counted."""
        kept = tuple(column for column in self.columns if column[0].name not in unread)
        return Projection(kept or self.columns[:1])

    def keeps(self, column: str) -> bool:
        """Whether a column passes unchanged under its own name."""
        return any(
            field.name == column and isinstance(made, Column) and made.name == column
            for field, made in self.columns
        )


class FormulaOperator(Operator):
    """Computes whole batches; a batch with a bad record is halved until that record is found."""

    reads: frozenset[str]

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            return self.made_of(batch)
        except (ExpressionFailed, FunctionRaised) as error:
            if batch.num_rows == 1:
                found = error.error if isinstance(error, FunctionRaised) else error
                self.reject(found, batch, sorted(self.reads) or batch.schema.names[:1])
                return None
        half = batch.num_rows // 2
        made = [self.on_batch(part) for part in (batch.slice(0, half), batch.slice(half))]
        good = [part for part in made if part is not None]
        return concat(good) if good else None

    def made_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows made of a batch."""
        raise NotImplementedError


class WhereOperator(FormulaOperator):
    """Keeps the rows for which a condition is true, neither false nor null."""

    def __init__(self, condition: Expression) -> None:
        super().__init__()
        made = (prepared([part]) for part in in_turn(condition))
        self._parts = [(part, computer(part.expressions[0])) for part in made]
        self.reads = columns_of(condition)

    def made_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for part, computed in self._parts:
            is_kept = computed(part.extended(batch))
            batch = batch if is_kept.true_count == len(is_kept) else batch.filter(is_kept)
        return batch


def in_turn(condition: Expression) -> list[Expression]:
    """A condition as one or two, of which the second is only for rows for which the first is true.

    As in Spark, a user's function is called only for rows that conditions without functions have
    left, if these are joined by ``and``. A condition that can raise stays behind a function that
    stands before it.
    """
    first: list[Expression] = []
    rest: list[Expression] = []
    for part in _joined_by_and(condition):
        is_plain = not prepared([part]).calls and not (rest and part.raises)
        (first if is_plain else rest).append(part)
    if not rest:
        return [condition]
    return [in_pairs(parts, _both) for parts in (first, rest) if parts]


def _joined_by_and(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Apply) and condition.function == "And":
        for argument in condition.arguments:
            yield from _joined_by_and(argument)
    else:
        yield condition


def _both(left: Expression, right: Expression) -> Expression:
    return apply("And", [left, right], pa.bool_())


class ProjectOperator(FormulaOperator):
    """Makes the columns of a projection."""

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self._prepared = prepared([made for _, made in projection.columns])
        self._columns = [computer(made) for made in self._prepared.expressions]
        self._schema = projection.schema
        self.reads = projection.reads()

    def made_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch = self._prepared.extended(batch)
        columns = [column(batch) for column in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
