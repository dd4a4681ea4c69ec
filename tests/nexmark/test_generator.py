"""Events are functions of their ids, and distributed as in Beam."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.errors import WrongType
from clonos.sources.readers import EndOfInput
from clonos_bench.nexmark import KINDS, Generator, events, write_parquet
from clonos_bench.nexmark.generator import BASE_MS

KIND_NAMES = sorted(KINDS)


@settings(max_examples=60)
@given(
    st.sampled_from(KIND_NAMES), st.integers(0, 10**7), st.integers(0, 300), st.integers(0, 300),
    st.sampled_from([1, 50, 200]),
)  # fmt: skip
def test_every_event_is_a_function_of_its_id(kind, first, before, rows, group):
    generator = Generator(10**8, group=group)
    part = generator.batch(kind, first + before, rows)
    part.validate(full=True)
    whole = generator.batch(kind, first, before + rows)
    assert part.to_pylist() == whole.slice(before).to_pylist()


@pytest.mark.parametrize("group", [1, 50, 500])
@pytest.mark.parametrize("events", [0, 1, 3, 4, 49, 50, 1234])
def test_kinds_are_shared_out(events, group):
    generator = Generator(events, group=group)
    counts = [generator.rows(kind) for kind in ("person", "auction", "bid")]
    assert sum(counts) == events == generator.rows("event")
    kinds = generator.batch("event", 0, events).column("kind").to_pylist()
    assert counts == [kinds.count(kind) for kind in ("person", "auction", "bid")]


@pytest.mark.parametrize("group", [1, 100])
def test_all_events_are_those_of_the_kinds(group):
    generator = Generator(1000, group=group)
    mixed = generator.batch("event", 0, 1000)
    for kind in ("person", "auction", "bid"):
        column = mixed.column(kind)
        chosen = column.filter(pc.equal(mixed.column("kind"), kind))
        alone = generator.batch(kind, 0, generator.rows(kind))
        assert chosen.to_pylist() == alone.to_pylist()
        assert column.null_count == 1000 - alone.num_rows


def test_ids_times_and_shuffling():
    ids = Generator(10**6).ids("event", 0, 1000)
    assert ids.tolist() == list(range(1000))
    shuffled = Generator(10**6, group=100).ids("event", 0, 1000)
    assert sorted(shuffled.tolist()) == list(range(1000))
    assert shuffled[:3].tolist() == [0, 953 % 100, 2 * 953 % 100]
    bids = Generator(1000, delay_us=250).batch("bid", 0, 100)
    times = bids.column("date_time").cast(pa.int64()).to_numpy() // 1000
    expected = BASE_MS + Generator(1000).ids("bid", 0, 100) * 250 // 1000
    assert times.tolist() == expected.tolist()


def test_distributions_are_those_of_beam():
    generator = Generator(500_000)
    bids = generator.batch("bid", 100_000, 200_000)
    auctions = generator.batch("auction", 3_000, 20_000)
    persons = generator.batch("person", 0, 5_000)
    is_hot = (bids.column("auction").to_numpy() - 1000) % 100 == 0
    assert 0.5 < is_hot.mean() < 0.52  # by half of the draws, and by chance
    is_hot = (bids.column("bidder").to_numpy() - 1000) % 100 == 1
    assert 0.75 < is_hot.mean() < 0.77
    is_hot = (auctions.column("seller").to_numpy() - 1000) % 100 == 0
    assert 0.75 < is_hot.mean() < 0.77
    logs = np.log10(bids.column("price").to_numpy() / 100)
    assert 0 <= logs.min() < 0.01
    assert 5.99 < logs.max() <= 6
    assert abs(logs.mean() - 3) < 0.02
    last = generator.ids("bid", 100_000, 200_000) // 50 * 3 + 2 + 1000
    ahead = bids.column("auction").to_numpy() - last
    assert ahead.max() == 10
    assert -110 < ahead.min() < -90
    assert set(auctions.column("category").to_pylist()) == set(range(10, 15))
    assert pc.all(pc.greater(auctions.column("reserve"), auctions.column("initial_bid"))).as_py()
    open_for = pc.milliseconds_between(auctions.column("date_time"), auctions.column("expires"))
    assert 1 <= pc.min(open_for).as_py() < 5
    assert 320 < pc.max(open_for).as_py() <= 334
    assert len(set(persons.column("state").to_pylist())) == 6
    assert len(set(persons.column("name").to_pylist())) == 99
    for batch, mean in ((persons, 200), (auctions, 500), (bids, 100)):
        size = sum(
            8 if not pa.types.is_string(c.type) else pc.mean(pc.binary_length(c)).as_py()
            for c in batch.columns
        )
        assert abs(size - mean) < 0.06 * mean


@settings(max_examples=40)
@given(
    st.sampled_from(["person", "auction", "bid", "event"]), st.integers(0, 700), st.integers(1, 3),
    st.lists(st.integers(1, 90), min_size=1), st.data(),
)  # fmt: skip
def test_tasks_share_out_the_rows_and_read_them_again(kind, total, parallelism, sizes, data):
    spec = events(kind, total, block_events=100)
    found = []
    for index in range(parallelism):
        reader = spec.reader(index, parallelism)
        reader.open(0)
        rows = []
        for size in [*sizes * 1000]:
            try:
                batch = reader.read(size, 0.0)
            except EndOfInput:
                break
            assert batch is not None
            assert 0 < batch.num_rows <= size
            rows += batch.to_pylist()
        reader.close()
        skipped = data.draw(st.integers(0, len(rows)))
        again = spec.reader(index, parallelism)
        opened = data.draw(st.integers(0, skipped))
        again.open(opened)
        again.skip(skipped - opened)
        if skipped < len(rows):
            exactly = again.read_exactly(len(rows) - skipped)
            assert exactly.to_pylist() == rows[skipped:]
        found += rows
    generator = Generator(total)
    expected = generator.batch(kind, 0, generator.rows(kind)).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_files(tmp_path):
    generator = Generator(5000)
    write_parquet(generator, tmp_path)
    for kind in ("person", "auction", "bid"):
        table = pq.read_table(tmp_path / f"{kind}.parquet")
        assert table.to_pylist() == generator.batch(kind, 0, generator.rows(kind)).to_pylist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Generator(-1),
        lambda: Generator(1, group=30),
        lambda: Generator(1, group=953 * 50),
        lambda: events("offer", 1),
    ],
)
def test_mistakes_are_found(make):
    with pytest.raises(WrongType):
        make()
