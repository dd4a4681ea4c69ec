"""What a job reads and writes, by name and place: its data lineage, for listeners."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from clonos.columns.schema import spark_type
from clonos.errors import masked
from clonos.graph.compile import CompiledJob
from clonos.nodes.views import Dataset, Datasets
from clonos.sinks.spec import SinkSpec
from clonos.sources.spec import SourceSpec


def datasets_of(compiled: CompiledJob) -> Datasets:
    """The sources and sinks of a job.

    Examples
    --------
    >>> from clonos import Job, sinks, sources
    >>> job = Job("copy")
    >>> rows = job.source(sources.from_batches([], "n long"), name="numbers")
    >>> rows.sink(sinks.parquet("/data/out"), name="out")
    >>> datasets_of(job.compile()).outputs
    (Dataset(operator='out', kind='parquet', place='/data/out', columns=(('n', 'bigint'),)),)
    """
    inputs: dict[str, Dataset] = {}
    outputs: dict[str, Dataset] = {}
    for code in compiled.codes:
        if (source := code.source) is not None:
            name = code.source_name
            columns = _columns(source.rows_schema)
            inputs[name] = Dataset(name, source.kind, _masked(_place_of_source(source)), columns)
        if (sink := code.sink) is not None:
            name = code.operators[-1][0]
            columns = _columns(sink.schema or pa.schema([]))
            kind = sink.kind if sink.query is None else sink.query.format
            outputs[name] = Dataset(name, kind, _masked(_place_of_sink(sink)), columns)
    return Datasets(tuple(inputs.values()), tuple(outputs.values()))


def _columns(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    known = ((field, spark_type(field.type)) for field in schema)
    return tuple((f.name, str(f.type) if t is None else str(t.simpleString())) for f, t in known)


def _masked(place: str | None) -> str | None:
    """The place without keys, which it may contain if it is a URI."""
    return None if place is None else masked(place)


def _place_of_source(source: SourceSpec) -> str | None:
    """The place of a source; None for a DataFrame, about which Spark knows more."""
    if source.inlet is not None:
        return getattr(source.inlet, "place", None)
    first, *others = source.factory.args if isinstance(source.factory, partial) else (None,)
    if source.kind == "socket":
        return f"{first}:{others[0]}"
    return getattr(first, "place", None)


def _place_of_sink(sink: SinkSpec) -> str | None:
    if sink.query is not None:
        return sink.query.path or sink.query.options.get("topic")
    if sink.path is not None or sink.store is None:
        return sink.path
    # Several sinks may share a topic or an endpoint, so such a place is not claimed by one of them.
    of = getattr(sink.store, "topic", None) or getattr(sink.store, "endpoint", None) or sink.store
    place: str | None = of.place
    return place
