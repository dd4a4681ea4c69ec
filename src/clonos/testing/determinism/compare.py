"""Describes the first difference between two runs of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from clonos.columns.batches import concat
from clonos.columns.digest import content_digest
from clonos.columns.rows import short
from clonos.core.canonical import decode, encode
from clonos.operators.process.process import described
from clonos.state.kept import Kept, kept_of
from clonos.testing.determinism.runs import History, Made, Run
from clonos.testing.harness import Batches, Event, Source

SHOWN = 80
"""How much of a value is shown."""


def difference(one: Run, other: Run, history: History) -> str:
    """The first difference between two runs of the same steps; "" if there is none.

    The second run may begin later.
    """
    steps = one.steps[other.first :]
    for number, (made, remade) in enumerate(zip(steps, other.steps, strict=False), other.first):
        what = _of_rows(made.rows, remade.rows) or _of_others(made, remade)
        what = what or _of_layers(made.layer, remade.layer, is_process=one.is_process)
        if what:
            return f"{what}{_given(history.events[number][1])}"
    if len(steps) != len(other.steps):
        return f"first {len(steps)} steps, then {len(other.steps)}"
    return ""


def difference_of_content(one: Run, other: Run) -> str:
    """The same for runs with other batches: compares the output of all steps together."""
    what = _of_rows(_together(one.steps), _together(other.steps))
    return what or _of_state(one.state, other.state)


def _together(steps: Sequence[Made]) -> dict[int, pa.RecordBatch]:
    of: dict[int, list[pa.RecordBatch]] = {}
    for made in steps:
        for channel, rows in made.rows.items():
            of.setdefault(channel, []).append(rows)
    return {channel: concat(batches) for channel, batches in of.items()}


def _of_rows(one: Mapping[int, pa.RecordBatch], other: Mapping[int, pa.RecordBatch]) -> str:
    for channel in one.keys() | other.keys():
        first, then = one.get(channel), other.get(channel)
        if first is None or then is None:
            there = first if then is None else then
            assert there is not None
            counts = f"{there.num_rows if then is None else 0} rows, then "
            counts += f"{there.num_rows if first is None else 0}"
            return f"first {counts}; one of them is {_shown(there.slice(0, 1).to_pylist()[0])}"
        if content_digest(first) != content_digest(then):
            return _of_batches(first, then)
    return ""


def _of_batches(one: pa.RecordBatch, other: pa.RecordBatch) -> str:
    for number in range(min(one.num_rows, other.num_rows)):
        first, then = one.slice(number, 1), other.slice(number, 1)
        if content_digest(first) == content_digest(then):
            continue
        for column in one.schema.names:
            value, again = (row[column][0].as_py() for row in (first, then))
            if encode(value) != encode(again):
                return (
                    f"row {number + 1} differs in {column!r}: first {_shown(value)}, then "
                    f"{_shown(again)}"
                )
    return f"first {one.num_rows} rows, then {other.num_rows}"


def _of_others(one: Made, other: Made) -> str:
    if one.others == other.others:
        return ""
    both = zip(one.others, other.others, strict=False)
    first = next((pair for pair in both if pair[0] != pair[1]), None)
    if first is None:
        longer = max(one.others, other.others, key=len)
        said = longer[min(len(one.others), len(other.others))]
        return f"only the {'first' if longer is one.others else 'second'} run {_of_it(said)}"
    return f"first it {_of_it(first[0])}, then it {_of_it(first[1])}"


def _of_it(said: str) -> str:
    is_verb = said.startswith(("calls ", "asks ", "wants "))
    return said if is_verb else f"makes {said}" if said.startswith("the ") else f"raises {said}"


def _of_layers(one: bytes, other: bytes, *, is_process: bool) -> str:
    if one == other:
        return ""
    first, then = kept_of(one), kept_of(other)
    for number in first.keys() | then.keys():
        what = _of_kept(first.get(number), then.get(number), is_process=is_process)
        if what:
            return what
    return "what it keeps differs"


def _of_kept(one: Kept | None, other: Kept | None, *, is_process: bool) -> str:
    facts, again = ({} if kept is None else kept.facts for kept in (one, other))
    for name in facts.keys() | again.keys():
        if encode(facts.get(name)) != encode(again.get(name)):
            return (
                f"{name!r}, which it keeps, differs: first {_shown(facts.get(name))}, then "
                f"{_shown(again.get(name))}"
            )
    rows, rows_again = _by_key(one), _by_key(other)
    for key in [*rows, *(key for key in rows_again if key not in rows)]:
        value, value_again = rows.get(key), rows_again.get(key)
        if value != value_again:
            what = described(key) if is_process else "what it keeps"
            return f"{what} differs: first {_decoded(value)}, then {_decoded(value_again)}"
    return ""


def _by_key(kept: Kept | None) -> dict[bytes, bytes | None]:
    if kept is None:
        return {}
    return dict(zip(kept.keys.to_pylist(), kept.values.to_pylist(), strict=True))


def _decoded(value: bytes | None) -> str:
    if value is None:
        return "none"
    try:
        return _shown(decode(value))
    except Exception:  # noqa: BLE001 - rows in columns are no single value
        return f"{len(value)} bytes"


def _of_state(one: Mapping[Any, Mapping[str, Any]], other: Mapping[Any, Mapping[str, Any]]) -> str:
    for key in [*one, *(key for key in other if key not in one)]:
        values, again = one.get(key, {}), other.get(key, {})
        for name in values.keys() | again.keys():
            if encode(values.get(name)) != encode(again.get(name)):
                return (
                    f"state {name!r} of key {key!r} differs: first {_shown(values.get(name))}, "
                    f"then {_shown(again.get(name))}"
                )
    return ""


def _given(event: Event) -> str:
    """The input of a step, to help find it."""
    if not isinstance(event, (Source, Batches)):
        return f", at {type(event).__name__}"
    rows = event.batch if isinstance(event, Source) else event.batches[0]
    count = rows.num_rows if isinstance(event, Source) else sum(b.num_rows for b in event.batches)
    if not count:
        return ""
    return f", given {count} {'row' if count == 1 else 'rows'} from {_shown(_row(rows))} on"


def _row(rows: pa.RecordBatch) -> Any:
    return rows.slice(0, 1).to_pylist()[0]


def _shown(value: Any) -> str:
    return short(value, SHOWN)
