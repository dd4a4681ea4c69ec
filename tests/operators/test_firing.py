"""A window that is on the disk fires: what is in memory is a few times what comes out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from random import Random
from typing import Any

import pytest

import clonos
from clonos.graph.code import TaskCode
from clonos.operators.windows import rows as window_rows
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state import large_rows, runs, sessions
from clonos.testing import StepHarness, rows
from tests.state.held import counted

ROWS = "key string, t timestamp"
KEYS, KEY_BYTES, AT_ONCE, MEMORY = 6_000, 2_000, 1_500, 1 << 20
RANGE = 500_000

KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda k: k.window(clonos.tumbling("10 s", on="t")).agg(
        n=clonos.count(), pre_aggregate=False, name="op"
    ),
    "sliding": lambda k: k.window(clonos.sliding("10 s", "5 s", on="t")).agg(
        n=clonos.count(), pre_aggregate=False, name="op"
    ),
    "session": lambda k: k.window(clonos.session("1 s", on="t")).agg(
        n=clonos.count(), pre_aggregate=False, name="op"
    ),
    "in order": lambda k: k.in_order("t", name="op"),
}
TIMES = {"tumbling": 3, "sliding": 4, "session": 4, "in order": 3}
"""In windows that slide, parts of windows are held beside the windows."""


def code_of(kind: str) -> TaskCode:
    made = clonos.Job("job", parallelism=1)
    given = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=1)
    keyed = given.with_watermark("t", "0 ms", name="marks").key_by("key")
    KINDS[kind](keyed).sink(clonos.sinks.collect(), name="out")
    (code,) = [code for code in made.compile().codes if code.operators[-2][0] == "op"]
    return code


def test_rows_of_windows_are_read_a_few_windows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_rows, "_AT_ONCE", 20)
    schema = "key long, t timestamp, text string"
    made = clonos.Job("job", parallelism=1)
    given = made.source(clonos.sources.from_batches([], schema), name="rows", parallelism=1)
    keyed = given.with_watermark("t", "0 ms", name="marks").key_by("key")
    windows = keyed.window(clonos.tumbling("1 s", on="t"))
    windows.rows(name="op").sink(clonos.sinks.collect(), name="out")
    (code,) = [code for code in made.compile().codes if code.operators[0][0] == "op"]
    (channel,) = code.task.inputs
    whole, program = StepHarness(code.program()), code.program()
    program.use(SlowShelf(Random(1)), MEMORY)
    for first in range(0, KEYS, AT_ONCE):
        some = [
            (n % 100, datetime.fromtimestamp(n % 3, timezone.utc), str(n).ljust(KEY_BYTES, "."))
            for n in range(first, first + AT_ONCE)
        ]
        whole.input(channel, some, schema)
        layer: Any = whole.program
        program.apply(bytes(layer.delta()))
    expected = whole.watermark(channel, 10_000).batches[code.task.outputs[0]]
    small = StepHarness(program)
    with counted() as held:
        fired = small.watermark(channel, 10_000).batches[code.task.outputs[0]]
    assert fired.digest == expected.digest
    assert held() < 3 * expected.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_what_fires_is_in_memory_a_few_times(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MERGED_BYTES", RANGE)
    monkeypatch.setattr(large_rows, "_READ_ROWS", 100)
    monkeypatch.setattr(sessions, "_HASHED_ROWS", 100)
    code = code_of(kind)
    (channel, *_) = code.task.inputs
    whole = StepHarness(code.program())
    program: Any = code.program()
    program.use(SlowShelf(Random(1)), MEMORY)
    for first in range(0, KEYS, AT_ONCE):
        numbers = [n * 7919 % KEYS for n in range(first, first + AT_ONCE)]
        given = [
            (f"{n} ".ljust(KEY_BYTES, "."), datetime.fromtimestamp(n % 9, timezone.utc))
            for n in numbers
        ]
        whole.input(channel, given, ROWS)
        layer: Any = whole.program
        program.apply(bytes(layer.delta()))
    for _ in range(9 if kind == "session" else 0):
        program.delta()  # they leave the memory
    small = StepHarness(program)
    mark = 10_000
    expected = [rows(batch) for batch in whole.watermark(channel, mark).batches.values()]
    with counted() as held:
        fired = small.watermark(channel, mark)
    assert [rows(batch) for batch in fired.batches.values()] == expected
    assert sum(map(len, expected)) >= KEYS
    nbytes = sum(batch.nbytes for batch in fired.batches.values())
    assert held() < TIMES[kind] * nbytes
