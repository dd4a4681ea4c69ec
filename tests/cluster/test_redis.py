"""A Redis Stream as the source of a real job, whose processes are killed."""

from __future__ import annotations

from typing import Any

import pytest

import clonos

redis = pytest.importorskip("redis")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
ROWS = 300


def test_each_entry_is_there_once_though_its_reader_dies(kit, spark, redis_url):
    names = ["first", "second"]
    client = redis.Redis.from_url(redis_url)
    job = clonos.Job("entries", parallelism=2, checkpoint_interval="300 ms")
    source = clonos.sources.redis(redis_url, names, schema="n long", metadata=True)
    rows = job.source(source, name="events").slot_group("out").start_new_chain()
    found: list[Any] = []
    rows.sink(clonos.sinks.callback(lambda batch: found.extend(batch.to_pylist())), name="out")
    running = job.start(spark)
    added = []
    for victims in ((), ("events[0]",), ("events[1]", "out[0]")):
        for n in range(ROWS):
            name = names[n % 2]
            added.append((n, name, client.xadd(name, {"n": n}).decode()))
        kit.wait_for(lambda: kit.is_quiet(running))
        kit.kill(running, *victims)
        kit.wait_for(lambda: running.delivered["out"] >= len(added))
    kit.wait_for(lambda: kit.is_quiet(running))
    running.stop()
    assert sorted((r["n"], r["stream"], r["id"]) for r in found) == sorted(added)
    assert {"events[0]", "events[1]"} <= {r.name for r in running.observer.recoveries}
    client.close()
