"""Columns as PySpark users write them: chosen, computed, renamed, and rows chosen by a condition.

A column that is only named needs no Spark session. Expressions are read by Spark when they are
written, and computed in tasks (see :mod:`clonos.columns.formula`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos.api.placed import Placed
from clonos.columns.formula import Column, columns_of
from clonos.columns.schema import parse_schema, require_columns, spark_type
from clonos.errors import WrongType
from clonos.operators.context import takes_context
from clonos.operators.operations import Filter, Operation, Project, Where
from clonos.operators.stateless.columns import Projection

if TYPE_CHECKING:
    from clonos.api.streams import Stream
    from clonos.graph.logical import Vertex


class ColumnOperations(Placed):
    """What a stream can do with columns. An expression is a PySpark ``Column``, or SQL."""

    if TYPE_CHECKING:

        def _add(
            self,
            kind: str,
            name: str | None,
            schema: pa.Schema,
            parallelism: int | None,
            operation: Operation,
            **known: Any,
        ) -> Vertex: ...
        def _like_this(self, vertex: Vertex) -> Stream: ...

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {type_}" for name, type_ in self.dtypes)
        return f"{type(self).__name__}[{columns}]"

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, as Arrow's."""
        return self._vertex.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and types, as Spark writes them.

        Examples
        --------
        >>> import clonos
        >>> clonos.Job().source(clonos.sources.from_batches([], "n long, s string")).dtypes
        [('n', 'bigint'), ('s', 'string')]
        """
        return [(field.name, _type_text(field.type)) for field in self.schema]

    def printSchema(self) -> None:  # noqa: N802 - as PySpark spells it
        """Print the columns as a tree.

        Examples
        --------
        >>> import clonos
        >>> clonos.Job().source(clonos.sources.from_batches([], "n long not null")).printSchema()
        root
         |-- n: long (nullable = false)
        """
        lines = [line for field in self.schema for line in _tree_of(field)]
        print("\n".join(["root", *lines]))  # noqa: T201 - this is what it is for

    def where(
        self, condition: Any, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Keep the rows for which a condition is true, neither false nor null.

        Parameters
        ----------
        condition
            SQL or a column, such as ``"price > 100"`` or ``F.col("price") > 100``; see
            ``docs/columns.md`` for what it may use. :meth:`filter` takes functions, too.

        Raises
        ------
        NotInTasks
            It has a part that tasks do not compute exactly as Spark does.
        NeedsSpark
            There is no session that could read it.

        Examples
        --------
        >>> cheap = bids.where("price < 100 and item is not null")  # doctest: +SKIP
        """
        from clonos.spark.expressions import condition as condition_of
        from clonos.spark.expressions import read_by

        made = condition_of(self.schema, condition, name or "where")
        operation = Where(made, condition, read_by())
        known = {"reads": tuple(sorted(columns_of(made))), "passes_on": True}
        return self._like_this(
            self._add("where", name, self.schema, parallelism, operation, **known)
        )

    def filter(
        self,
        condition: Any,
        *,
        deterministic: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows for which ``fn(row)`` is true, or a condition as in :meth:`where`.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "n long"))
        >>> rows.filter(lambda row: row.n % 2 == 0).columns
        ['n']
        """
        if isinstance(condition, str) or is_column(condition):
            return self.where(condition, name=name, parallelism=parallelism)
        takes_context(condition, name or "filter")
        operation = Filter(condition, deterministic)
        return self._like_this(self._add("filter", name, self.schema, parallelism, operation))

    def select(
        self, *columns: Any, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Only these columns, in this order: names, ``"*"``, or expressions with an alias.

        A keyed stream stays one if its keys are among them. Columns that no later operator reads
        are not computed; after a source of Parquet files or of a DataFrame, they are not even
        read.

        Raises
        ------
        UnknownColumn
            There is no column of this name.
        NotInTasks, NeedsSpark
            As for :meth:`where`.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long, c long"))
        >>> rows.select("c", "a").columns
        ['c', 'a']
        >>> rows.select("a", F.upper("b").alias("B"), (F.col("c") * 2).alias("d"))  # doctest: +SKIP
        """
        where = name or "select"
        given = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list) else columns
        if all(map(self._is_name, given)):
            require_columns(self.schema, given, where)
            fields = [self.schema.field(column) for column in given]
            parse_schema(pa.schema(fields))  # none is there twice
            made = Projection.of(self.schema, dict(zip(given, given, strict=True)))
            return self._projected("select", Project(made), name, parallelism)
        return self._analysed("select", lambda frame: frame.select(*given), name, parallelism)

    def selectExpr(  # noqa: N802 - as PySpark spells it
        self, *expressions: str, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """:meth:`select` of expressions in SQL.

        Examples
        --------
        >>> euros = bids.selectExpr("item", "price * 89 div 100 as euros")  # doctest: +SKIP
        """
        return self._analysed(
            "selectExpr", lambda frame: frame.selectExpr(*expressions), name, parallelism
        )

    def withColumn(  # noqa: N802 - as PySpark spells it
        self,
        column: str,
        expression: Any,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Add a column computed from others; it replaces the one of this name, or comes last.

        The expression is a PySpark ``Column``; :meth:`with_column` takes a function.

        Examples
        --------
        >>> bids.withColumn("euros", F.col("price") * 89 / 100)  # doctest: +SKIP
        """
        return self._analysed(
            "withColumn", lambda frame: frame.withColumn(column, expression), name, parallelism
        )

    def withColumns(  # noqa: N802 - as PySpark spells it
        self,
        columns: Mapping[str, Any],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Several columns, each computed from the columns before this operator.

        Examples
        --------
        >>> bids.withColumns({"a": F.col("b") + 1, "b": F.lit(0)})  # doctest: +SKIP
        """
        return self._analysed(
            "withColumns", lambda frame: frame.withColumns(dict(columns)), name, parallelism
        )

    def withColumnRenamed(  # noqa: N802 - as PySpark spells it
        self, existing: str, new: str, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Rename a column; nothing changes if there is none of this name.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long"))
        >>> rows.withColumnRenamed("a", "x").columns
        ['x', 'b']
        """
        return self._renamed("withColumnRenamed", {existing: new}, name, parallelism)

    def withColumnsRenamed(  # noqa: N802 - as PySpark spells it
        self,
        columns: Mapping[str, str],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rename several columns, old name to new name, one after the other.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long"))
        >>> rows.withColumnsRenamed({"b": "c", "a": "b"}).columns
        ['b', 'c']
        """
        return self._renamed("withColumnsRenamed", columns, name, parallelism)

    def drop(
        self, *columns: Any, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """All columns but these; unknown names are ignored, as in PySpark.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long"))
        >>> rows.drop("b", "c").columns
        ['a']
        """
        if any(map(is_column, columns)):
            return self._analysed("drop", lambda frame: frame.drop(*columns), name, parallelism)
        self._require_case(columns, name or "drop")
        kept = [column for column in self.schema.names if column not in columns]
        if not kept:
            raise WrongType(
                "no column is left", where=name or "drop", remedy="keep at least one column"
            )
        made = Projection.of(self.schema, dict(zip(kept, kept, strict=True)))
        return self._projected("drop", Project(made), name, parallelism)

    def _is_name(self, column: Any) -> bool:
        """Whether this is a name that no session has to read."""
        is_text = isinstance(column, str)
        return is_text and (column in self.schema.names or not {"*", ".", "`"} & set(column))

    def _require_case(self, columns: Iterable[str], where: str) -> None:
        """Refuse a name that a session which ignores case would find, and we do not."""
        known = {column.lower() for column in self.schema.names}
        wrong = [c for c in columns if c not in self.schema.names and c.lower() in known]
        require_columns(self.schema, wrong, where)

    def _renamed(
        self, kind: str, names: Mapping[str, str], name: str | None, parallelism: int | None
    ) -> Stream:
        new = self.schema.names
        for old, other in names.items():
            if old not in new:
                self._require_case([old], name or kind)
            new = [other if column == old else column for column in new]
        return self._with_names(kind, new, name, parallelism)

    def _with_names(
        self, kind: str, new: Sequence[str], name: str | None, parallelism: int | None
    ) -> Stream:
        parse_schema(pa.schema([pa.field(column, pa.null()) for column in new]))
        made = Projection.of(self.schema, dict(zip(new, self.schema.names, strict=True)))
        return self._projected(kind, Project(made), name, parallelism)

    def _analysed(
        self, kind: str, choose: Callable[[Any], Any], name: str | None, parallelism: int | None
    ) -> Stream:
        from clonos.spark.expressions import projected, read_by

        chosen = []
        for column, made in projected(self.schema, choose, name or kind):
            field = pa.field(column, made.type)
            if isinstance(made, Column):  # it stays as it is, also whether it may be null
                field = self.schema.field(made.name).with_name(column)
            chosen.append((field, made))
        parse_schema(pa.schema([field for field, _ in chosen]))
        operation = Project(Projection(tuple(chosen)), choose, read_by())
        return self._projected(kind, operation, name, parallelism)

    def _projected(
        self, kind: str, operation: Project, name: str | None, parallelism: int | None
    ) -> Stream:
        from clonos.api.streams import Stream

        made = operation.projection
        vertex = self._add(kind, name, made.schema, parallelism, operation)
        is_like_this = all(map(made.keeps, self._edge.keys))
        return self._like_this(vertex) if is_like_this else Stream(self._job, vertex)


def is_column(condition: Any) -> bool:
    """Whether this is one of PySpark's columns, told without importing PySpark."""
    return any(
        cls.__module__.startswith("pyspark.") and cls.__name__ == "Column"
        for cls in type(condition).__mro__
    )


def _type_text(data_type: pa.DataType) -> str:
    known = spark_type(data_type)
    return str(data_type) if known is None else str(known.simpleString())


def _tree_of(field: pa.Field) -> list[str]:
    from pyspark.sql.types import StructField, StructType

    known = spark_type(field.type)
    if known is None:
        return [f" |-- {field.name}: {field.type} (nullable = {str(field.nullable).lower()})"]
    tree = StructType([StructField(field.name, known, field.nullable)]).treeString()
    return str(tree).splitlines()[1:]
