"""Redaction: values are replaced before a bundle is written, so that they leave no machine.

Digests are computed anew from the new values, so a redacted bundle is replayed as strictly as any
other. This is tried when it is made: if the job takes another course with the new values, no bundle
is made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.batches import from_bytes, seal, to_bytes
from clonos.columns.row_codec import RowCodec
from clonos.columns.rows import Row, row_type
from clonos.core.canonical import decode, encode, split
from clonos.core.determinants import (
    Call,
    Determinant,
    Outcomes,
    Source,
    SourceCut,
    decode_record,
    encode_record,
)
from clonos.core.digest import chain
from clonos.core.layer import merge_layers
from clonos.core.messages import Item
from clonos.core.sealed import Layer
from clonos.errors import CannotRedact, WrongType
from clonos.graph.code import TaskCode
from clonos.operators.operations import Operation
from clonos.replay.contents import IN_ROWS, TIMERS, VALUE
from clonos.state.deltas import encode_delta, merge_deltas
from clonos.state.kept import Kept, kept_of
from clonos.state.placed import have_rows
from clonos.state.timers import key_of

Redact = Collection[str] | Callable[[str, Any], Any]
"""Names of columns and fields whose values are replaced; or a function that gets the name and value
of each, and returns the value to write, of the same type."""

ANSWER: Final = "answer"
"""The name of an answer that is neither a row nor a dict."""
UNKNOWN: Final = 0
"""Stands for a question's digest that is unknown; it matches any."""

T = TypeVar("T")


def require_redact(name: str, value: Any) -> None:
    """Raise `WrongType` unless an argument of this name says what is replaced."""
    names = [value] if isinstance(value, str) else value
    is_list = isinstance(names, Collection) and all(isinstance(one, str) for one in names)
    if not (callable(value) or is_list):
        raise WrongType(f"{name}={value!r}", remedy="give names of columns, or a function")


class Redaction:
    """Replaces values wherever a bundle has them.

    Parameters
    ----------
    redact
        See :data:`Redact`. Texts under a name are replaced by others (equal ones by equal ones),
        numbers by 0, truth values by False, and everything else by null.

    Examples
    --------
    >>> redaction = Redaction(["name"])
    >>> found = redaction.value("", {"name": "Ann", "n": 1, "kin": [{"name": "Ann"}]})
    >>> found["name"] == found["kin"][0]["name"] != "Ann", found["n"]
    (True, 1)
    >>> Redaction(lambda name, value: value * 2 if name == "n" else value).value("n", 3)
    6
    """

    def __init__(self, redact: Redact) -> None:
        if isinstance(redact, str):
            redact = [redact]
        self.names = None if callable(redact) else frozenset(redact)
        self._fn = redact if callable(redact) else self._hide
        self._secret = secrets.token_bytes(16)
        self._met: set[str] = set()  # names that values had
        self._changed: set[str] = set()  # columns
        self._keyed: dict[str, str] = {}  # by column, an operator with state by this key

    @property
    def unmet(self) -> tuple[str, ...]:
        """Names that no value had so far: perhaps they are misspelt."""
        return tuple(sorted((self.names or frozenset()) - self._met))

    def _is_to_go(self, name: str) -> bool:
        is_named = name in (self.names or ())
        if is_named:
            self._met.add(name)
        return is_named

    def _hide(self, name: str, value: Any) -> Any:
        if not self._is_to_go(name):
            return value
        if isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            return f"~{blake2b(text, key=self._secret, digest_size=8).hexdigest()}"
        if isinstance(value, bool | int | float | Decimal):
            return type(value)(0)
        return None

    def _whole(self, name: str, fields: T) -> T | None:
        """Replace a value with fields as a whole, if its own name is to be redacted."""
        return None if self._is_to_go(name) else fields

    def value(self, name: str, value: Any) -> Any:
        """Redact a value and the fields inside it."""
        if isinstance(value, dict):
            found = {k: self.value(k if isinstance(k, str) else name, v) for k, v in value.items()}
            return self._whole(name, found)
        if isinstance(value, Row):
            fields = value.asDict().items()
            return self._whole(name, row_type(value._fields)(self.value(k, v) for k, v in fields))
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(self.value(name, one) for one in value)
        if isinstance(value, pa.RecordBatch):
            return self.rows(value)
        return value if value is None else self._fn(name, value)

    # --- rows -----------------------------------------------------------------------------------

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Redact a batch; types stay the same."""
        columns = []
        for number, field in enumerate(batch.schema):
            column = batch.column(number)
            before = column.to_pylist()
            after = [self._in_column(field.name, value, field.type) for value in before]
            if after != before:
                self._changed.add(field.name)
                column = self._column(field, after)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _in_column(self, name: str, value: Any, data_type: pa.DataType) -> Any:
        """Redact a value of a column; the entries of a map count as fields."""
        if value is None or not pa.types.is_nested(data_type):
            return self.value(name, value)
        if pa.types.is_map(data_type):
            within = data_type.item_type
            pairs = [
                (self.value(name, k), self._in_column(k if isinstance(k, str) else name, v, within))
                for k, v in value
            ]
            return self._whole(name, pairs)
        if pa.types.is_struct(data_type):
            fields = {f.name: self._in_column(f.name, value[f.name], f.type) for f in data_type}
            return self._whole(name, fields)
        return [self._in_column(name, one, data_type.value_type) for one in value]

    @staticmethod
    def _column(field: pa.Field, values: list[Any]) -> pa.Array:
        try:
            column = pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise CannotRedact(
                f"its new values do not fit: {error}",
                where=field.name,
                remedy=f"return values of type {field.type}",
            ) from error
        if column.null_count and not field.nullable:
            raise CannotRedact(
                "its values cannot be replaced by null",
                where=field.name,
                remedy=f"give a function that returns values of type {field.type}",
            )
        return column

    def sealed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Redact a batch; also returns the digest that its step will find."""
        found = self.rows(batch)
        return found, seal(found).digest

    def items(self, items: Sequence[Item], before: int) -> list[Item]:
        """Redact items of a channel; `before`: the running digest before the first."""
        found = []
        for item in items:
            batch = item.batch and seal(self.rows(item.batch.payload))
            digest = batch.digest if batch else 0
            before = chain(before, item.kind, item.value, digest, item.watermark)
            found.append(replace(item, batch=batch, chain=before))
        return found

    # --- the log --------------------------------------------------------------------------------

    def entry(self, entry: bytes, digest: int | None) -> bytes:
        """Redact a log entry; `digest`: of its source's new rows."""
        return encode_record([self._determinant(one, digest) for one in decode_record(entry)])

    def _determinant(self, one: Determinant, digest: int | None) -> Determinant:
        match one:
            case Source(content=content) if content is not None:
                batch, digest = self.sealed(from_bytes(content))
                return one._replace(digest=digest, content=to_bytes(batch))
            case Source() | SourceCut() if digest is not None:
                return one._replace(digest=digest)
            case Call():
                return Call(UNKNOWN, one.ok, self._answer(one.answer, ok=one.ok))
            case Outcomes():
                return Outcomes(
                    tuple(
                        o._replace(digest=UNKNOWN, answer=self._answer(o.answer, ok=o.ok), trace="")
                        for o in one.outcomes
                    )
                )
        return one

    def _answer(self, answer: bytes, *, ok: bool) -> bytes:
        value = decode(answer)
        if ok:
            return encode(self.value(ANSWER, value))
        kind, *_ = value
        hidden = "its text is left out"
        return encode([kind, [hidden]] if kind else [None, value[1], hidden])

    # --- state ----------------------------------------------------------------------------------

    def layer(self, code: TaskCode, layers: Sequence[Layer]) -> Layer:
        """Redact all layers of a task, merged into one.

        Raises
        ------
        CannotRedact
            Some state has values without names, or is kept by a column to be redacted.
        """
        whole = merge_layers(layers, merge_deltas, is_base=True)
        if any(items for _, items in whole.carried.values()):
            raise CannotRedact("rows were on their way in a loop", where=code.task.name)
        names = [name for name, _ in code.operators]
        kept = kept_of(whole.delta)
        changes = [
            (number, change)
            for number, of_one in kept.items()
            for change in (
                self._kept(*code.operators[number], of_one) if number >= 0 else of_one
            ).changes()
        ]
        return replace(whole, delta=encode_delta(names, changes))

    def _kept(self, name: str, operation: Operation, kept: Kept) -> Kept:
        if not len(kept.values):
            return kept
        self._keyed |= dict.fromkeys(getattr(operation, "keys", ()), name)
        kind = type(operation).__name__
        if kind in IN_ROWS:
            return kept._replace(values=self._columnar(operation, IN_ROWS[kind], kept))
        values = kept.values.to_pylist()
        addresses = kept.keys.to_pylist()
        if kind != "ProcessRows" or not all(one[:1] in (VALUE, *TIMERS) for one in addresses):
            raise CannotRedact(
                "its state cannot be searched for values by name",
                where=name,
                remedy="begin where it has none (at='oldest'), bundle another task alone, or do "
                "without redact=",
            )
        columns = getattr(operation, "keys", ())
        new = [
            self._of_process(address, value, columns)
            for address, value in zip(addresses, values, strict=True)
        ]
        return kept._replace(values=pa.array(new, pa.large_binary()))

    def _of_process(self, address: bytes, value: bytes, columns: Sequence[str]) -> bytes:
        if not address.startswith(VALUE):
            self._see_key(key_of(address), columns)
            return value  # a timer: a time and a key
        name, key = split(address[len(VALUE) :])
        self._see_key(key, columns)
        return encode(self.value(str(name), decode(value)))

    def _see_key(self, encoded: bytes, columns: Sequence[str]) -> None:
        """Note keys of the state, because later rows may lack them."""
        for column, part in zip(columns, decode(encoded), strict=True):
            if self.value(column, part) != part:
                self._changed.add(column)

    def require_keys(self) -> None:
        """Check, at the end, that state is still found by its keys.

        Raises
        ------
        CannotRedact
            Some state is kept by a column that was changed.
        """
        if lost := sorted(self._changed & self._keyed.keys()):
            raise CannotRedact(
                f"its state is kept by {lost[0]!r}, which is to be replaced",
                where=self._keyed[lost[0]],
                remedy="begin where it has no state (at='oldest'), or leave this column as it is",
            )

    def _columnar(self, operation: Operation, beside: Sequence[str], kept: Kept) -> pa.Array:
        (schema, *_) = operation.keeps
        whole = pa.schema([*schema, *(pa.field(name, pa.int64()) for name in beside)])
        codec = RowCodec(whole)
        has_row = have_rows(kept.keys)
        rows = codec.decode(kept.values.filter(has_row))
        new = codec.encode(self.rows(pa.RecordBatch.from_arrays(rows, schema=whole)).columns)
        return pc.replace_with_mask(kept.values, has_row, new)


def number_of_rows(
    outputs: Mapping[str, Sequence[tuple[int, int, pa.RecordBatch]]],
) -> dict[str, int]:
    """The number of delivered rows by sink."""
    return {name: sum(batch.num_rows for *_, batch in made) for name, made in outputs.items()}
