"""A replayed step, as text and as a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

import pyarrow as pa

ROWS_MAX: Final = 10
"""How many rows of a batch, or entries of state, are shown."""
TEXT_MAX: Final = 200
"""How many characters of a value are shown."""


State = Mapping[str, Mapping[Any, Mapping[str, Any]]]
"""By operator and key, values by name."""


@dataclass(frozen=True)
class Step:
    """One step of a task.

    Attributes
    ----------
    task, position
        The task, and the step's number in the log.
    is_logged
        Whether the step is in the log; otherwise the replay has gone on beyond it.
    cause
        The event: ``"20 rows of the source"``, ``"2 batches of words[0]"``.
    took, made
        Rows that came in, in the order of the step, and rows that went out, by receiver. Arrow.
    answers
        The results of calls and clock readings, in order.
    before, after
        If `state` was requested: the state of each ``Process`` for the keys that the step has
        changed, by operator and key, as values by name.
    """

    task: str
    position: int
    is_logged: bool
    cause: str
    took: tuple[pa.RecordBatch, ...] = ()
    made: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    answers: tuple[Any, ...] = ()
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The step as HTML, for notebooks."""
        return page_of(self)

    def __str__(self) -> str:
        rows = ", ".join(f"{count(b.num_rows, 'row')} to {n}" for n, b in self.made.items())
        answers = f", {count(len(self.answers), 'answer')} used" if self.answers else ""
        new = "" if self.is_logged else " (not in the log)"
        return f"{self.task} step {self.position}{new}: {self.cause}{answers} -> {rows or '-'}"


def count(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def page_of(step: Step) -> str:
    """The step's input, answers, output, and changes of state, as HTML."""
    parts = [f"<b>{escape(str(step))}</b>"]
    batches = [("took", batch) for batch in step.took]
    batches += [(f"made, for {name}", batch) for name, batch in step.made.items()]
    for name, batch in batches:
        shown = batch.slice(0, ROWS_MAX).to_pylist()
        parts.append(_table(name, shown, batch.num_rows))
    if step.answers:
        answers = [{"answer": answer} for answer in step.answers[:ROWS_MAX]]
        parts.append(_table("was answered", answers, len(step.answers)))
    for operator in step.after:
        rows = list(_changes(step.before.get(operator, {}), step.after[operator]))
        parts.append(_table(f"state of {operator}", rows[:ROWS_MAX], len(rows)))
    return "<div>" + "".join(parts) + "</div>"


def _changes(
    before: Mapping[Any, Mapping[str, Any]], after: Mapping[Any, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    for key in {**before, **after}:
        for name in {**before.get(key, {}), **after.get(key, {})}:
            values = (of.get(key, {}).get(name) for of in (before, after))
            yield dict(zip(("key", "name", "before", "after"), (key, name, *values), strict=True))


def _table(caption: str, rows: list[dict[str, Any]], count: int) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    more = f" (the first {len(rows)} of {count})" if count > len(rows) else ""
    return (
        f"<table><caption>{escape(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}...")
