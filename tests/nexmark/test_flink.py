"""Flink as a peer: its SQL against the same reference as ours, in one virtual machine.

Checkpoints are taken every 200 ms, into files.
"""

from __future__ import annotations

from collections import Counter

import pytest

from clonos.errors import ClonosError
from clonos_bench.flink import sql
from clonos_bench.flink.process import SETTINGS, Installation, Peer, options
from clonos_bench.nexmark import Generator

PYTHON = ".venv-flink/bin/python"
CASES = [(name, 20_000, 2_000) for name in sql.QUERIES if name != "12"]
SLOW = [("3", 40_000, 500_000), ("11", 5_000, 10**6), ("14", 5_000, 10**7)]
"""Slow events: sessions end within the input, and some persons are too old."""


@pytest.fixture(scope="module")
def flink(tmp_path_factory):
    try:
        found = Installation.find(PYTHON)
    except ClonosError as error:
        pytest.skip(str(error))
    settings = {**SETTINGS, "execution.target": "local", "parallelism.default": 2}
    settings |= {"taskmanager.numberOfTaskSlots": 2, "rest.port": 0}
    folder = tmp_path_factory.mktemp("flink")
    settings |= {"execution.checkpointing.interval": "200 ms"}
    settings |= {"execution.checkpointing.dir": (folder / "checkpoints").as_uri()}
    command = found.java("nexmark.Driver", *options(settings), options=["-Xmx1g"])
    with Peer(command, folder / "log") as peer:
        yield peer


def given(folder):
    """The rows that are left when all corrections are applied, sorted."""
    left: Counter[tuple[object, ...]] = Counter()
    for path in folder.glob("*.tsv"):
        for line in path.read_text("utf-8").splitlines():
            change, _, *fields = line.split("\t")
            left[tuple(map(value, fields))] += 1 if change.startswith("+") else -1
    assert min(left.values()) >= 0
    return sorted(left.elements())


def value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize(("name", "events", "delay_us"), CASES + SLOW)
def test_query_gives_what_sql_says(flink, reference, tmp_path, name, events, delay_us):
    small = {"block-events": 500, "watermark-ms": 0}
    ran = flink.run(sql.job(name, events, delay_us=delay_us, folder=str(tmp_path), **small))
    expected = reference.expected(int(name), Generator(events, delay_us))
    assert len(expected) > 3
    assert given(tmp_path) == sorted(tuple(value(str(cell)) for cell in row) for row in expected)
    assert ran.rows_out == len(expected)


def columns_of(kind):
    """As the table's definition has them."""
    made = sql.tables("n BIGINT", 2_000).split(";")
    columns = next(each for each in made if each.startswith(f"CREATE TABLE {kind} "))
    return columns.partition("(")[2].partition(", now_time")[0]


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["person", "auction", "bid"])
def test_events_are_the_same(flink, reference, tmp_path, kind):
    made = sql.tables(columns_of(kind), 2_000, folder=str(tmp_path))
    names = ", ".join(column.split()[0] for column in columns_of(kind).split(", "))
    flink.run(f"{made}; INSERT INTO output SELECT {names} FROM {kind}")
    generator = Generator(2_000)
    batch = generator.batch(kind, 0, generator.rows(kind))
    expected = [tuple(value(str(cell)) for cell in row) for row in reference.found(batch)]
    assert given(tmp_path) == sorted(expected)


@pytest.mark.spark
@pytest.mark.soak
def test_what_flink_says_is_passed_on(flink):
    with pytest.raises(ClonosError, match="nothing_there"):
        flink.run("SELECT * FROM nothing_there")


def test_without_flink_one_is_told_how_to_get_it(tmp_path):
    with pytest.raises(ClonosError, match=r"scripts/setup_flink\.sh"):
        Installation.find(str(tmp_path / "bin" / "python"))
