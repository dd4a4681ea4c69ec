"""What PySpark's DataFrames have, under its names, beside columns; and what streams have not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from clonos.api.columns import ColumnOperations
from clonos.columns.schema import require_columns
from clonos.errors import BadGraph, UnknownColumn, WrongType
from clonos.graph.logical import Vertex
from clonos.operators import operations as op

if TYPE_CHECKING:
    from clonos.api.grouped import GroupedStream
    from clonos.api.keyed import KeyedStream
    from clonos.api.streams import Stream

_RESULT: Final = ".sink(clonos.sinks.collect()), and then job.run(spark).table()"
_ORDER: Final = 'key_by(...).in_order("time"), or .window(...).top(10, "price")'
INSTEAD: Final = {
    **dict.fromkeys(["collect", "show", "take", "first", "head", "tail", "isEmpty", "toPandas",
        "toArrow", "toLocalIterator", "count"], _RESULT),
    **dict.fromkeys(["cache", "persist", "unpersist", "checkpoint", "localCheckpoint"],
        "nothing: a stream that goes to several sinks is computed once"),
    **dict.fromkeys(["orderBy", "sort", "sortWithinPartitions"], _ORDER),
    **dict.fromkeys(["write", "writeStream", "writeTo", "mergeInto"],
        '.sink(clonos.sinks.spark("delta", "/data/out")), or .to_dataframe(spark)'),
    "foreachBatch": ".sink(clonos.sinks.callback(fn))",
    **dict.fromkeys(["foreach", "foreachPartition"],
        ".for_each_async(fn), or .sink(clonos.sinks.callback(fn))"),
    "mapInArrow": ".map_batches(fn, schema)",
    "mapInPandas": ".map_batches(fn, schema), with batch.to_pandas() in fn",
    "transformWithState": ".groupBy(...).transformWithState(...)",
    "transformWithStateInPandas": ".groupBy(...).transformWithState(...), whose processor has rows",
    "applyInPandasWithState": ".key_by(...).process(...)",
    "join": ".key_by(...).join(other.key_by(...), ...), or .look_up(table, on=...)",
    **dict.fromkeys(["crossJoin", "lateralJoin", "nearestByJoin"], ".look_up(table, on=...)"),
    **dict.fromkeys(["subtract", "exceptAll"], '.key_by(...).join(other.key_by(...), how="anti")'),
    **dict.fromkeys(["intersect", "intersectAll"],
        '.key_by(...).join(other.key_by(...), how="semi")'),
    **dict.fromkeys(["limit", "offset"], '.window(...).top(n, "column")'),
    **dict.fromkeys(["repartition", "repartitionByRange", "repartitionById", "coalesce"],
        ".rebalance() or .key_by(...)"),
    **dict.fromkeys(["rdd", "toJSON"], ".map(fn, schema)"),
    "alias": ".withColumnsRenamed(...) before the join: names may be there once",
    "dropna": '.where(F.col("a").isNotNull())',
    "fillna": '.withColumn("a", F.coalesce("a", F.lit(0)))',
    "na": '.where(F.col("a").isNotNull()), or .withColumn("a", F.coalesce("a", F.lit(0)))',
    "replace": '.withColumn("a", F.when(F.col("a") == 1, 2).otherwise(F.col("a")))',
    "explain": "print(job.explain(spark))",
    **dict.fromkeys(["sample", "sampleBy", "randomSplit"],
        ".filter(fn), where fn has ctx.random: it is the same again in a replay"),
    **dict.fromkeys(["cube", "rollup", "groupingSets"], ".groupBy(...).agg(...), once for each"),
    **dict.fromkeys(["melt", "unpivot"], ".flat_map(fn, schema)"),
    **dict.fromkeys(["zip", "zipWithIndex"], ".key_by(...).process(...), which can count rows"),
    **dict.fromkeys(["deduplicate", "in_order", "keys", "last", "process"],
        ".key_by(...) before it"),
    **dict.fromkeys(["agg", "avg", "max", "min", "sum"], ".key_by(...).window(...).agg(...)"),
    **dict.fromkeys(["createTempView", "createOrReplaceTempView", "createGlobalTempView",
        "createOrReplaceGlobalTempView", "registerTempTable"], ".to_dataframe(spark)"),
    **dict.fromkeys(["approxQuantile", "asTable", "colRegex", "corr", "cov", "crosstab", "describe",
        "executionInfo", "exists", "freqItems", "hint", "inputFiles", "isLocal", "isStreaming",
        "metadataColumn", "observe", "pandas_api", "plot", "sameSemantics", "scalar",
        "semanticHash", "sparkSession", "stat", "storageLevel", "summary", "to", "transpose",
        "withMetadata"],
        "it on the DataFrame before job.source(df), or on that of .to_dataframe(spark)"),
}  # fmt: skip
"""What DataFrames have and streams have not, and what to write instead."""


class FrameOperations(ColumnOperations):
    """Operations of DataFrames that keep a state."""

    if TYPE_CHECKING:

        def key_by(self, *columns: str) -> KeyedStream: ...
        def with_watermark(self, column: str, delay: str | timedelta) -> Stream: ...
        def union(self, *others: Stream) -> Stream: ...

    else:

        def __getattr__(self, name: str) -> Any:
            instead = INSTEAD.get(name)
            told = f"; write {instead}" if instead else ""
            if not name.startswith("_") and name in self.columns:
                told = f"; for the column write F.col({name!r})"
            raise AttributeError(f"a stream has no {name!r}{told}", name=name, obj=self)

        def __getitem__(self, item: Any) -> Any:
            wanted = f"F.col({item!r})" if isinstance(item, str) else ".select(...) or .where(...)"
            raise TypeError(f"a stream cannot be indexed; write {wanted}")

    def groupBy(self, *columns: Any) -> GroupedStream:  # noqa: N802 - as PySpark spells it
        """Group rows by columns and one window of ``F.window`` or ``F.session_window``.

        Windows of an event time need :meth:`withWatermark` before; ``F.current_timestamp()`` is the
        time at which rows arrive. The result has the column ``window`` with ``start`` and ``end``.

        Raises
        ------
        UnknownColumn, NotInTasks, NeedsSpark
            As for :meth:`select`.

        Examples
        --------
        >>> bids.groupBy("item", F.window("time", "10 seconds")).agg(  # doctest: +SKIP
        ...     F.count("*").alias("bids")
        ... )
        """
        from clonos.api.grouped import GroupedStream

        given = columns[0] if len(columns) == 1 and isinstance(columns[0], list) else columns
        return GroupedStream(self, given)  # type: ignore[arg-type]  # only streams are one

    groupby = groupBy

    def withWatermark(self, column: str, delay: str | timedelta) -> Stream:  # noqa: N802 - PySpark's
        """:meth:`with_watermark`, as PySpark spells it.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "time timestamp"))
        >>> rows.withWatermark("time", "4 seconds").columns
        ['time']
        """
        return self.with_watermark(column, delay)

    def dropDuplicates(self, subset: Sequence[str] | None = None) -> Stream:  # noqa: N802 - PySpark's
        """The first row of those with the same values in these columns, by default in all.

        They are remembered for ever; see :meth:`dropDuplicatesWithinWatermark`.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "id long, s string"))
        >>> rows.dropDuplicates(["id"]).columns
        ['id', 's']
        """
        return self.key_by(*self._subset(subset, "dropDuplicates")).deduplicate()

    drop_duplicates = dropDuplicates

    def _subset(self, subset: Sequence[str] | None, where: str) -> list[str]:
        if isinstance(subset, str):  # its letters could be columns, too
            raise WrongType(
                f"the text {subset!r}", where=where, remedy=f"give a list: [{subset!r}]"
            )
        return self.columns if subset is None else list(subset)

    def distinct(self) -> Stream:
        """:meth:`dropDuplicates` in all columns.

        Examples
        --------
        >>> import clonos
        >>> clonos.Job().source(clonos.sources.from_batches([], "a long")).distinct().columns
        ['a']
        """
        return self.dropDuplicates()

    def transform(self, func: Callable[..., Stream], *args: Any, **kwargs: Any) -> Stream:
        """The result of a function of this stream.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long"))
        >>> rows.transform(lambda stream: stream.drop("a")).columns
        ['b']
        """
        return func(self, *args, **kwargs)

    def toDF(self, *cols: str) -> Stream:  # noqa: N802 - as PySpark spells it
        """The same columns with these names, in order.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long"))
        >>> rows.toDF("x", "y").columns
        ['x', 'y']
        """
        if len(cols) != len(self.columns):
            raise WrongType(
                f"{len(cols)} names for {len(self.columns)} columns",
                where="toDF",
                remedy=f"give a name for each of {', '.join(self.columns)}",
            )
        return self._with_names("toDF", cols, None, None)

    def dropDuplicatesWithinWatermark(  # noqa: N802 - PySpark's
        self, subset: Sequence[str] | None = None
    ) -> Stream:
        """:meth:`dropDuplicates` of rows that are not further apart than the watermark's delay.

        Raises
        ------
        BadGraph
            There is no watermark.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "id long, at timestamp"))
        >>> timed = rows.withWatermark("at", "4 seconds")
        >>> timed.dropDuplicatesWithinWatermark(["id"]).columns
        ['id', 'at']
        """
        keys = self._subset(subset, "dropDuplicatesWithinWatermark")
        found = watermark_of(self._vertex)
        if found is None or found.column not in self.columns:
            raise BadGraph(
                "there is no watermark, or its column was dropped",
                where="dropDuplicatesWithinWatermark",
                remedy='write withWatermark("time", "5 seconds") before it',
            )
        delay = timedelta(milliseconds=found.delay_ms)
        return self.key_by(*keys).deduplicate(delay, on=found.column)

    def unionAll(self, other: Stream) -> Stream:  # noqa: N802 - as PySpark spells it
        """:meth:`union` with one other stream, as PySpark also spells it.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long"))
        >>> rows.unionAll(rows.filter(lambda row: row.a > 0)).columns
        ['a']
        """
        return self.union(other)

    def unionByName(self, other: Stream) -> Stream:  # noqa: N802 - as PySpark spells it
        """The rows of both streams; columns of the other one in the order of this one.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job()
        >>> rows = job.source(clonos.sources.from_batches([], "a long, b long"))
        >>> others = job.source(clonos.sources.from_batches([], "b long, a long"))
        >>> rows.unionByName(others).columns
        ['a', 'b']
        """
        require_columns(other.schema, self.columns, "unionByName")
        if more := [name for name in other.columns if name not in self.columns]:
            raise UnknownColumn(
                f"the other stream also has {', '.join(more)}",
                where="unionByName",
                remedy="drop them first",
            )
        return self.union(other.select(*self.columns))


def watermark_of(vertex: Vertex) -> op.WithWatermark | None:
    """The watermark that holds for the rows of an operator."""
    if isinstance(vertex.operation, op.WithWatermark):
        return vertex.operation
    return watermark_of(vertex.edges[0].vertex) if len(vertex.edges) == 1 else None
