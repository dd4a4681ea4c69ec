"""A table as the source of a real job, whose processes are killed while others write to it."""

from __future__ import annotations

from typing import Any

import pytest

import clonos

psycopg = pytest.importorskip("psycopg")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
ROWS = 300


def test_each_row_is_there_once_though_its_reader_dies_and_rows_commit_late(kit, spark, postgres):
    sql = psycopg.connect(postgres, autocommit=True)
    sql.execute("create table arriving (id bigserial primary key, n bigint)")
    job = clonos.Job("rows", checkpoint_interval="300 ms")
    source = clonos.sources.postgres(
        postgres,
        "select id, n from arriving",
        column="id",
        schema="id long, n long",
        every="20 ms",
    )
    rows = job.source(source, name="events").slot_group("out").start_new_chain()
    found: list[Any] = []
    rows.sink(clonos.sinks.callback(lambda batch: found.extend(batch.to_pylist())), name="out")
    running = job.start(spark)
    added = 0
    for victims in ((), ("events[0]",), ("events[0]", "out[0]")):
        late = psycopg.connect(postgres)
        late.execute("insert into arriving (n) values (-1)")
        for n in range(ROWS):
            sql.execute("insert into arriving (n) values (%s)", [n])
        kit.kill(running, *victims)
        kit.wait_for(lambda: kit.is_quiet(running))
        assert running.delivered["out"] == added, "rows were read below which one was open"
        late.commit()
        late.close()
        added += ROWS + 1
        kit.wait_for(lambda least=added: running.delivered["out"] >= least)
    kit.wait_for(lambda: kit.is_quiet(running))
    running.stop()
    expected = sql.execute("select id, n from arriving order by id").fetchall()
    assert [(row["id"], row["n"]) for row in found] == expected
    assert "events[0]" in {r.name for r in running.observer.recoveries}
    sql.execute("drop table arriving")
    sql.close()
