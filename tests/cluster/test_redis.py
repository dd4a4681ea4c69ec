"""A Redis Stream as the source of a real job, whose processes are killed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import clonos
from tests.processes import free_port

redis = pytest.importorskip("redis")
Retry, ConstantBackoff = redis.retry.Retry, redis.backoff.ConstantBackoff
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


def served(port: int, folder: Path) -> subprocess.Popen[bytes]:
    """A server that keeps nothing."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("Redis is not installed here (Debian's package: redis-server)")
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen([binary, *where, "--save", ""], stdout=subprocess.DEVNULL)
    with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.1), 600)) as client:
        assert client.ping()
    return server


def test_the_user_hears_once_that_the_server_is_away(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr("clonos.nodes.alarms.AWAY_S", 1)
    port = free_port()
    client = redis.Redis(port=port)
    server = served(port, tmp_path)
    try:
        job = clonos.Job("away", parallelism=1)
        source = clonos.sources.redis(f"redis://127.0.0.1:{port}", "s", schema="n long")
        job.source(source, name="events").sink(clonos.sinks.callback(print), name="out")
        running = job.start(spark)
        for rows in (1, 2):
            client.xadd("s", {"n": rows})
            kit.wait_for(lambda rows=rows: running.delivered["out"] == rows)
            server.kill()
            server.wait()
            kit.wait_for(lambda rows=rows: len(running.warnings) >= rows)
            server = served(port, tmp_path)
        client.xadd("s", {"n": 3})
        kit.wait_for(lambda: running.delivered["out"] == 3)
        running.stop()
        assert len(running.warnings) == 2
        for said in running.warnings:
            assert said.startswith("events[0]: its source, or a part of it, could not be read for ")
    finally:
        server.kill()
        server.wait()
        client.close()
