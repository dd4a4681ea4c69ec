"""Many runs, asked together, say what they say one after the other."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.simulator.processes.shelf import MemoryFile
from clonos.state import sieves
from clonos.state.runs import Run, hashes_of, write_values
from clonos.state.sieves import RUNS_MAX, Sieves

KEYS = [b"key %d" % n for n in range(50)]
LAYERS = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=5), min_size=1),
    min_size=1,
    max_size=6,
)


class Read(MemoryFile):
    """Content that counts how often it is read, and what it is told to expect."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.expected: list[int] = []

    def read(self, start, end):
        self.reads += 1
        return super().read(start, end)

    def expect(self, start, end):
        self.expected.append(start)


def written(values):
    file = Read()
    return Run(write_values(values, (), file.write), file)


def in_order(keys):
    """Hashes and keys, by hash."""
    keys = sorted(keys, key=lambda key: int(hashes_of([key])[0]))
    return hashes_of(keys), keys


def newest(asked, runs, keys):
    hashes, keys = in_order(keys)
    return {keys[i]: value for i, value in asked.newest(runs, hashes, keys).items()}


@pytest.fixture(params=[2, RUNS_MAX])
def runs_max(request, monkeypatch):
    """How many runs are asked together."""
    monkeypatch.setattr(sieves, "RUNS_MAX", request.param)


@pytest.mark.usefixtures("runs_max")
@given(LAYERS, st.lists(st.sampled_from(KEYS), unique=True, min_size=1))
def test_the_newest_value_counts_and_all_rows_are_found(layers, wanted):
    runs, asked = [written(layer) for layer in layers], Sieves()
    merged = {key: value for layer in layers for key, value in layer.items()}
    assert newest(asked, runs, wanted) == {k: merged[k] for k in wanted if k in merged}
    hashes, keys = in_order(wanted)
    rows = [(key, value) for i, key, value in asked.all(runs, hashes) if key == keys[i]]
    assert rows == [(k, layer[k]) for layer in layers for k in keys if k in layer]


@pytest.mark.usefixtures("runs_max")
@given(st.data())
def test_runs_come_and_are_merged(data):
    """What was put together before is used again, unless it has changed."""
    layers, runs, asked = [{KEYS[0]: b"first"}], [written({KEYS[0]: b"first"})], Sieves()
    for layer in data.draw(LAYERS):
        if len(layers) > 1 and data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(layers) - 2))
            end = data.draw(st.integers(start + 2, len(layers)))
            merged = {key: value for some in layers[start:end] for key, value in some.items()}
            layers[start:end], runs[start:end] = [merged], [written(merged)]
        layers.append(layer)
        runs.append(written(layer))
        known = {key: value for some in layers for key, value in some.items()}
        assert newest(asked, runs, KEYS) == known


def test_a_key_that_is_in_all_runs_is_read_once():
    layers = [dict.fromkeys(KEYS[:3], b"%d" % n) for n in range(3 * RUNS_MAX)]
    runs = [written(layer) for layer in layers]
    assert newest(Sieves(), runs, KEYS[:3]) == layers[-1]
    assert [run.blocks.reads for run in runs] == [*[0] * (len(runs) - 1), 1]


def test_the_disk_knows_of_all_blocks_before_it_is_asked_for_one(monkeypatch):
    runs = [written({key: bytes(9)}) for key in KEYS[:5]]
    expected: list[int] = []

    def read(file: Read, start: int, end: int) -> bytes:
        expected.append(sum(len(run.blocks.expected) for run in runs))
        return MemoryFile.read(file, start, end)

    monkeypatch.setattr(Read, "read", read)
    assert len(newest(Sieves(), runs, KEYS[:5])) == 5
    assert expected == [5] * 5


def test_a_run_that_is_gone_is_not_kept():
    """Its file would stay on the disk."""
    asked, run = Sieves(), written({KEYS[0]: b"a"})
    assert newest(asked, [run], KEYS[:1])
    known = ref(run)
    del run
    gc.collect()
    assert known() is None


def test_what_no_run_has_is_not_found():
    keys = [b"another %d" % n for n in range(2_000)]  # some of which seem to be there
    assert newest(Sieves(), [written(dict.fromkeys(KEYS, b"a")) for _ in range(40)], keys) == {}
    assert newest(Sieves(), [written({KEYS[0]: b""})], []) == {}
    assert newest(Sieves(), [], KEYS) == {}
