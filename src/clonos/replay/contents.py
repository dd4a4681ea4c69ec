"""The contents of a checkpoint, without the job's code: state by key, and calls in the log.

The checkpoint is only read, with a copy of its journal: no lock is taken, and the job may run. The
newest checkpoint in that copy is shown; with markers it is consistent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import house_keeper
from clonos.columns.row_codec import RowCodec
from clonos.core.calls import Outcome
from clonos.core.canonical import decode, decode_error, split
from clonos.core.determinants import Call, Outcomes, decode_record
from clonos.core.levels import LayerRef
from clonos.core.messages import Run
from clonos.core.version import version_of
from clonos.errors import ClonosError, NothingToReplay, UnreadableLayer
from clonos.graph.logical import LogicalGraph
from clonos.operators.calls.budget import MICROS, Cost
from clonos.operators.calls.purse import amount_of
from clonos.replay.kept import find, since
from clonos.replay.past import copied_journal
from clonos.state.deltas import CHAIN, merge_deltas
from clonos.state.kept import Kept, kept_of
from clonos.state.pieces import ORDER, orders_of
from clonos.state.placed import have_rows
from clonos.state.row_store import DUE
from clonos.storage.layers import LayerStore, get_layers
from clonos.upgrade.shape import Shape

STATE_SCHEMA: Final = pa.schema(
    [
        ("operator", pa.string()),
        ("task", pa.int32()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("name", pa.string()),
        ("value", pa.string()),
        ("bytes", pa.int64()),
    ]
)
LOG_SCHEMA: Final = pa.schema(
    [
        ("operator", pa.string()),
        ("task", pa.int32()),
        ("position", pa.int64()),
        ("service", pa.string()),
        ("number", pa.int64()),
        ("request", pa.string()),
        ("ok", pa.bool_()),
        ("answer", pa.string()),
        ("attempts", pa.int32()),
        ("ms", pa.int64()),
        ("cost", pa.float64()),
    ]
)

VALUE: Final = b"s"
"""Prefix of the addresses of a process's values."""
TIMERS: Final = (b"p", b"e")
_BY_KEY: Final = frozenset({"ProcessRows", "TransformRows"})
"""Operators that keep values and timers by key."""
IN_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "AggregateWindows": (ORDER,),
    "TopOfWindows": (ORDER,),
    "LatePart": (ORDER,),
    "Last": (ORDER,),
    "Deduplicate": (DUE, ORDER),
}
"""Operators that keep only rows of the schema in the checkpoint, with their additional columns."""
_FIELD: Final = re.compile(r"(?P<name>.*): (?P<type>\S.*?)(?P<must> not null)?")
_DECIMAL: Final = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TIME: Final = re.compile(r"timestamp\[us, tz=(.+)\]")


@dataclass(frozen=True)
class TaskContents:
    """The part of one task in a checkpoint.

    ``operators``: name, kind and settings of each, in order; ``keeps``: by name, the schemas of the
    rows that they keep, as text; ``runs``: entries of its log.
    """

    index: int
    operators: tuple[tuple[str, str, tuple[Any, ...]], ...]
    keeps: Mapping[str, Sequence[str]]
    layers: tuple[LayerRef, ...]
    store: str
    runs: tuple[Run, ...] = ()


def contents(
    checkpoint_dir: str, journal: str | Path | None = None, *, with_log: bool = False
) -> list[TaskContents]:
    """The contents of a checkpoint, task by task.

    Parameters
    ----------
    with_log
        Include the log in the journal and the history, from the oldest entry kept.

    Raises
    ------
    NothingToReplay
        There is no checkpoint.
    """
    with closing(JobDirectory(checkpoint_dir, journal, on_one_machine=True)) as directory:
        directory.read()
        with copied_journal(directory) as copy:
            shape = Shape(directory.graph(version_of(copy.replay())))
            keeper = house_keeper(shape.plan)
            keeper.recover(copy.replay())
        runs: list[Run] = []
        if with_log:
            runs = [run for task in keeper.positions for run in keeper.book.runs(task, 1)]
            if [p for p in keeper.history.points if p.number > keeper.history.going]:
                oldest = find(keeper.history, "oldest")
                runs = since(keeper, oldest, LayerStore(directory.layers_uri))
        return [
            TaskContents(
                index=spec.index,
                operators=tuple(
                    (name, str(shape.operators[name][0]), tuple(shape.operators[name][1:]))
                    for name in shape.chains[spec.id]
                ),
                keeps={name: shape.keeps.get(name, []) for name in shape.chains[spec.id]},
                layers=tuple(keeper.layers[spec.id]),
                store=directory.layers_uri,
                runs=tuple(run for run in runs if run.task == spec.id),
            )
            for spec in shape.plan.tasks
        ]


# --- state --------------------------------------------------------------------------------------


def state_rows(task: TaskContents, only: str | None = None) -> Iterator[pa.RecordBatch]:
    """The state of a task: a batch for each operator that has state.

    Parameters
    ----------
    only
        Only the operator of this name.

    Raises
    ------
    NothingToReplay
        The job has deleted layers meanwhile.
    """
    if not task.layers:
        return
    try:
        layers = get_layers(LayerStore(task.store), task.layers)
    except UnreadableLayer as error:
        raise NothingToReplay(
            f"the job has gone on while its state was read: {error.what}",
            where=error.where,
            remedy="read it again; or read a checkpoint of a job that is stopped",
        ) from error
    kept = kept_of(merge_deltas([layer.delta for layer in layers], is_base=True))
    for number, (name, kind, settings) in enumerate(task.operators):
        if number in kept and only in (None, name):
            rows = list(_rows(kept[number], kind, settings, task.keeps[name]))
            yield _batch(STATE_SCHEMA, [(name, task.index, *row) for row in rows])
    if only is None and CHAIN in kept:
        facts = _facts(kept[CHAIN])
        yield _batch(STATE_SCHEMA, [(None, task.index, *row) for row in facts])


_Row = tuple[str, str | None, str | None, str | None, int]


def _rows(kept: Kept, kind: str, settings: Sequence[Any], keeps: Sequence[str]) -> Iterator[_Row]:
    yield from _facts(kept)
    if kind not in _BY_KEY:
        # A run also has entries for the due times of rows.
        kept = kept.chosen(~kept.in_run | have_rows(kept.keys).to_numpy(zero_copy_only=False))
    schema = _schema(keeps[0], IN_ROWS[kind]) if kind in IN_ROWS else None
    if schema is not None and len(kept.values):
        # For windows folded before the shuffle, the setting is the whole operation.
        yield from _columnar(kept, schema, settings[0] if kind == "LatePart" else settings)
        return
    for address, value in zip(kept.keys.to_pylist(), kept.values.to_pylist(), strict=True):
        yield _keyed(address, value, is_process=kind in _BY_KEY)


def _facts(kept: Kept) -> Iterator[_Row]:
    for name, value in kept.facts.items():
        yield "fact", None, name, _text(value), 0


def _columnar(kept: Kept, schema: pa.Schema, settings: Sequence[Any]) -> Iterator[_Row]:
    """Columnar rows: the key of each, if the operator has a key, and the whole row."""
    values = kept.values.take(pa.array(np.argsort(orders_of(kept.keys))))
    columns = RowCodec(schema).decode(values)
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    rows = rows.select([name for name in rows.schema.names if name not in (DUE, ORDER)])
    keys = _keys(settings, rows.schema)
    for row, size in zip(rows.to_pylist(), values.to_pylist(), strict=True):
        key = _text({name: row[name] for name in keys}) if keys else None
        yield "row", key, None, _text(row), len(size)


def _keys(settings: Sequence[Any], schema: pa.Schema) -> list[str]:
    """The key columns, which are the first setting of an operator by key."""
    first = settings[0] if settings else []
    is_key = isinstance(first, list) and all(
        isinstance(name, str) and name in schema.names for name in first
    )
    return list(first) if is_key else []


def _keyed(address: bytes, value: bytes, *, is_process: bool) -> _Row:
    if is_process and address.startswith(VALUE):
        name, key = split(address[len(VALUE) :])
        return "value", _text(_plain_key(key)), str(name), _text(decode(value)), len(value)
    if is_process and address[:1] in TIMERS:
        with suppress(ValueError, TypeError, ClonosError):
            return "timer", None, None, _text(decode(value)), len(value)
    return "bytes", address.hex(), None, None, len(value)


def _plain_key(encoded: bytes) -> Any:
    key = decode(encoded)
    return key[0] if len(key) == 1 else key


def _schema(text: str, beside: Sequence[str]) -> pa.Schema | None:
    """Parse the ``str`` of a schema, and add columns of numbers; None if it has other types.

    Examples
    --------
    >>> text = str(pa.schema([("a: b", pa.timestamp("us", "UTC")), ("n", pa.decimal128(7, 2))]))
    >>> _schema(text, ["~order"]).names
    ['a: b', 'n', '~order']
    >>> _schema(str(pa.schema([("many", pa.list_(pa.int64()))])), [])
    """
    fields = []
    for line in text.split("\n"):
        found = _FIELD.fullmatch(line)
        data_type = None if found is None else _type(found["type"])
        if found is None or data_type is None:
            return None
        fields.append(pa.field(found["name"], data_type))
    return pa.schema([*fields, *(pa.field(name, pa.int64()) for name in beside)])


def _type(text: str) -> pa.DataType | None:
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := _TIME.fullmatch(text):
        return pa.timestamp("us", found[1])
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None


# --- the log ------------------------------------------------------------------------------------


def costs_of(graph: LogicalGraph) -> dict[str, Cost]:
    """What a call costs, or the function that says so, of each operator that declares it."""
    found = {vertex.name: getattr(vertex.operation, "policy", None) for vertex in graph.vertices}
    return {name: it.cost for name, it in found.items() if it is not None and it.cost is not None}


def log_rows(
    task: TaskContents, only: str | None = None, *, costs: Mapping[str, Cost]
) -> Iterator[pa.RecordBatch]:
    """The calls in the log of a task, in order.

    Parameters
    ----------
    only
        Only those of the operator of this name.
    costs
        See :func:`costs_of`. A cost is not in the log: it is computed from the answer.
    """
    rows = [row for row in _calls(task, costs) if only in (None, row[0])]
    if rows:
        yield _batch(LOG_SCHEMA, rows)


def _calls(task: TaskContents, costs: Mapping[str, Cost]) -> Iterator[tuple[Any, ...]]:
    for run in task.runs:
        for position, record in enumerate(run.records, run.start):
            for one in decode_record(record):
                if isinstance(one, Call):
                    said = _answer(one.answer, ok=one.ok)
                    yield (
                        *(None, task.index, position, None, None),
                        *(f"{one.arguments:016x}", one.ok, said, None, None, None),
                    )
                elif isinstance(one, Outcomes):
                    for came in one.outcomes:
                        name, _, settings = task.operators[came.operator]
                        said = _answer(came.answer, ok=came.ok)
                        asked = (_service(settings), came.number, f"{came.digest:016x}")
                        spent = (came.ok, said, came.attempts, came.ms, _cost(came, name, costs))
                        yield (name, task.index, position, *asked, *spent)


def _cost(came: Outcome, operator: str, costs: Mapping[str, Cost]) -> float | None:
    """As it is counted for a budget: errors and remembered answers cost nothing."""
    if operator not in costs:
        return None
    if not came.ok or not came.attempts:
        return 0.0
    return amount_of(came.answer, "cost", costs[operator], MICROS, operator) / MICROS


def _answer(answer: bytes, *, ok: bool) -> str | None:
    if ok:
        return _text(decode(answer))
    error = decode_error(answer)
    return f"{type(error).__name__}: {error}"


def _service(settings: Sequence[Any]) -> str | None:
    """An operator's only service, which is its first setting; a process may have several."""
    return settings[0] if settings and isinstance(settings[0], str) else None


# --- both ---------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    r"""A value as JSON; values that JSON lacks become strings, and maps lists of pairs.

    Examples
    --------
    >>> _text({"a": b"\x01"}), _text([{("a", 1): None}])
    ('{"a": "01"}', '[[[["a", 1], null]]]')
    """
    return json.dumps(_in_json(value), ensure_ascii=False, default=_plain)


def _in_json(value: Any) -> Any:
    """The same with a list of pairs for each dict with keys that are no texts."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _in_json(each) for key, each in value.items()}
        return [[_in_json(key), _in_json(each)] for key, each in value.items()]
    return [_in_json(each) for each in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _batch(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
