"""Requests as the source of a real job, whose processes are killed and which is started again."""

from __future__ import annotations

import http.client
from typing import Any

import pyarrow.parquet as pq
import pytest

import clonos
from tests.processes import free_port

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
ROWS = 60


def post(port: int, n: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/", b'{"n": %d}' % n, {"Idempotency-Key": f"k{n}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_each_request_is_there_once_though_tasks_die_and_senders_repeat(kit, spark, tmp_path):
    port = free_port()

    def start() -> Any:
        job = clonos.Job(
            "hooks", checkpoint_interval="300 ms", checkpoint_dir=str(tmp_path / "job")
        )
        rows = job.source(clonos.sources.webhook(port, schema="n long"), name="events")
        out = clonos.sinks.parquet(str(tmp_path / "out"), linger="50 ms")
        rows.slot_group("out").start_new_chain().sink(out, name="out")
        return job.start(spark)

    running = start()
    sent = 0
    for victims in (("events[0]",), ("events[0]", "out[0]")):
        kit.wait_for(lambda: kit.is_quiet(running))
        kit.kill(running, *victims)
        for n in range(max(0, sent - ROWS), sent + ROWS):  # half of them again
            assert post(port, n) == 200
        sent += ROWS
        kit.wait_for(lambda least=sent: running.delivered["out"] >= least)
    kit.wait_for(lambda: kit.is_quiet(running))
    running.stop()
    again = start()
    kit.wait_for(lambda: kit.is_quiet(again))
    for n in range(sent + 1):
        assert post(port, n) == 200
    kit.wait_for(lambda: pq.read_table(tmp_path / "out").num_rows > sent)
    again.stop()
    assert sorted(pq.read_table(tmp_path / "out").column("n").to_pylist()) == list(range(sent + 1))
    assert "events[0]" in {r.name for r in running.observer.recoveries}
