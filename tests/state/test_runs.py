from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.core.content import Chunks, InMemory, Part
from clonos.core.layer import decode_layer, encode_layer
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import UnreadableLayer
from clonos.simulator.processes.shelf import MemoryFile
from clonos.state.deltas import Values, encode_delta, merge_deltas, merge_into, open_delta
from clonos.state.runs import (
    BLOCK_BYTES,
    Index,
    Run,
    RunWriter,
    filter_bits,
    hashes_of,
    merge_runs,
    write_values,
)
from clonos.state.sieves import Sieves, _Sieve

some_values = st.dictionaries(
    st.integers(0, 40).map(lambda n: b"key %d" % n),
    st.none() | st.binary(max_size=5) | st.integers(0, 40).map(lambda n: bytes(n * 1000)),
)


def written(values):
    file = MemoryFile()
    index = write_values(values, [n % 128 for n in range(len(values))], file.write)
    return Run(Index.decode(index.encode()), file)


def found(run, keys):
    hashes = hashes_of(keys)
    order = np.argsort(hashes).tolist()
    by_hash = [keys[i] for i in order]
    return {by_hash[i]: v for i, v in Sieves().newest([run], hashes[order], by_hash).items()}


def may_have(run, hashes):
    return _Sieve([run]).may_have(*filter_bits(hashes))


def test_the_filter_lets_few_keys_pass_that_are_not_there():
    run = written({b"there %d" % n: b"" for n in range(20_000)})
    hashes = hashes_of([b"not there %d" % n for n in range(100_000)])
    passed = may_have(run, hashes).mean()
    assert 0.003 < passed < 0.005, "0.4 % seem to be there, says the comment"
    assert may_have(run, hashes_of([key for key, _ in run.items()])).all()


@given(st.lists(some_values, min_size=1, max_size=5), st.booleans())
def test_merged_runs_say_what_the_newest_says(layers, is_base):
    runs = [written(values) for values in layers]
    file = MemoryFile()
    writer = RunWriter(sum(map(len, runs)), file.write)
    merge_runs(runs, writer, is_base=is_base)
    merged = Run(writer.index(), file)
    expected = {key: value for values in layers for key, value in values.items()}
    if is_base:
        expected = {key: value for key, value in expected.items() if value is not None}
    assert dict(merged.items()) == expected
    assert found(merged, [b"key %d" % n for n in range(50)]) == expected


def test_rows_of_a_part_of_the_hashes():
    values = {b"%d" % n: b"x" * (n % 500) for n in range(3000)}
    run = written(values)
    assert run.nbytes > 20 * BLOCK_BYTES
    for low, high in ((0, 1 << 64), (1 << 62, 1 << 63), (5, 6)):
        hashes = [h for rows in run.parts(low, high) for h in rows.hashes.tolist()]
        assert hashes == sorted(h for h in hashes_of(list(values)).tolist() if low <= h < high)


def test_most_blocks_are_not_read_for_keys_that_are_not_there():
    class Counted(InMemory):
        reads = 0

        def read(self, start, end):
            self.reads += 1
            return super().read(start, end)

    run = written({b"%d" % n: b"x" * 100 for n in range(5000)})
    blocks = Counted(run.blocks.read(0, len(run.blocks)))
    assert not found(Run(run.index, blocks), [b"other %d" % n for n in range(1000)])
    assert blocks.reads < 8


def test_blocks_of_many_keys_are_asked_for_before_the_first_is_read():
    class Asked(InMemory):
        def read(self, start, end):
            story.append(("read", start, end))
            return super().read(start, end)

        def expect(self, start, end):
            story.append(("expect", start, end))

    story: list[tuple[str, int, int]] = []
    values = {b"%d" % n: b"x" * 100 for n in range(5000)}
    run = written(values)
    run = Run(run.index, Asked(run.blocks.read(0, len(run.blocks))))
    assert len(found(run, list(values)[:40])) == 40
    expected = [span for what, *span in story if what == "expect"]
    assert len(expected) > 10
    assert story == [("expect", *span) for span in expected] + [
        ("read", *span) for span in expected
    ]


def test_keys_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr("clonos.state.runs.xxh3_64_intdigest", lambda content: len(content) % 3)
    values = {b"%d" % n: (b"%d" % n) * 20 for n in range(2000)}
    run = written(values)
    assert dict(run.items()) == values
    assert found(run, list(values)) == values
    assert found(run, [b"no"]) == {}


def sealed(deltas):
    layer = Layer(
        task=0, incarnation=Incarnation(1, 0), epoch=1, position=1, ins={}, outs={}, ended=(),
        dep={}, clock_ms=0, wake_ms=None, source_rows=0, source_ended=False, delta=b"",
    )  # fmt: skip
    return replace(layer, delta=deltas)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_changed_byte_is_noticed_when_it_is_read(in_memory):
    rng = random.Random(1)
    values = {b"key %d" % n: rng.randbytes(50) for n in range(2000)}
    delta = encode_delta(["a"], [(0, lambda: [Values(values, [0] * len(values))])])
    content = encode_layer(sealed(delta))
    opened = 0

    def read(data):
        nonlocal opened
        layer = decode_layer(data if in_memory else Part(InMemory(data), 0, len(data)))
        opened += 1
        ((_, run),) = open_delta(layer.delta).runs
        return dict(run.items())

    assert read(content) == values
    for _ in range(60):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        with pytest.raises(UnreadableLayer):
            read(bytes(damaged))
    assert opened > 30  # the rest was in what the layer's own checksum covers


@given(st.lists(some_values, max_size=4), st.booleans())
def test_deltas_are_merged_alike_in_memory_and_on_disk(layers, is_base):
    changes = [Values(values, [7] * len(values)) for values in layers]
    deltas = [encode_delta(["a", "b"], [(1, partial(list, [change]))]) for change in changes]
    merged = merge_deltas(deltas, is_base=is_base)
    on_disk = merge_into(MemoryFile(), deltas, is_base=is_base)
    assert bytes(Chunks([on_disk])) == merged
    assert decode_layer(encode_layer(sealed(on_disk))).delta == merged
    rows = [rows for _, run in open_delta(merged).runs for rows in run.parts()]
    assert all((part.groups == 7).all() for part in rows)
