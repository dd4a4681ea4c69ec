"""Effects in real processes that are killed: each is made once, and everybody knows its receipt."""

from __future__ import annotations

import asyncio
import random
import socketserver
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos.errors import EffectUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 60
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]


def hangs(n: int) -> bool:
    return n % 3 == 0


async def pay(folder: Path, n: int, *, call: clonos.EffectCall) -> int:
    """Of every third payment no answer comes while there is no gate; half of these are made."""
    if hangs(n) and n % 2 == 0:
        await gate(folder)
    receipt = random.getrandbits(40)
    with (folder / "payments").open("a") as payments:
        payments.write(f"{call.key} {n} {receipt}\n")
    if hangs(n) and n % 2:
        await gate(folder)
    return receipt


async def gate(folder: Path) -> None:
    with (folder / "waiting").open("a") as waiting:
        waiting.write("x")
    while not (folder / "gate").exists():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)


async def find(folder: Path, n: int, *, call: clonos.EffectCall) -> Any:
    with (folder / "checks").open("a") as checks:
        checks.write(f"{n}\n")
    for key, _, receipt in payments(folder):
        if key == call.key:
            return clonos.Made(receipt)
    return clonos.NotMade


async def pay_by_key(folder: Path, n: int, *, call: clonos.EffectCall) -> int:
    """A service that deduplicates."""
    for key, _, receipt in payments(folder):
        if key == call.key:
            return receipt
    return await pay(folder, n, call=call)


def payments(folder: Path) -> list[tuple[str, int, int]]:
    path = folder / "payments"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(key, int(n), int(receipt)) for key, n, receipt in map(str.split, lines)]


def count(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0


def build(
    folder: Path,
    declared: clonos.Effect,
    timeout: str = "3 s",
    hedge: str | None = None,
    **settings: Any,
) -> clonos.Job:
    job = clonos.Job("shop", parallelism=1, **settings)
    source = clonos.sources.from_batches([[(n,) for n in range(ROWS)]], "n long")
    rows = job.source(source, name="in").slot_group("paying").start_new_chain()
    paid = rows.with_column_async(
        "receipt long",
        declared,
        "n",
        name="pay",
        in_flight=ROWS,
        ordered=False,
        timeout=timeout,
        hedge=hedge,
        attempts=1_000,  # a busy machine may let some of them time out
        backoff=("100 ms", "100 ms"),
    )
    paid.sink(clonos.sinks.collect(), name="out")
    return job


def wait_until_only_the_hanging_are_open(kit: Any, job: Any, folder: Path) -> None:
    """If it takes longer than the timeout, fewer: those that a check has found."""
    hanging = sum(map(hangs, range(ROWS)))
    kit.wait_for(lambda: job.delivered["out"] >= ROWS - hanging)
    kit.wait_for(lambda: count(folder / "waiting") >= hanging)


def check(folder: Path, table: Any) -> None:
    got = sorted(zip(*table.to_pydict().values(), strict=True))
    made = payments(folder)
    assert Counter(n for _, n, _ in made) == dict.fromkeys(range(ROWS), 1)
    assert len({key for key, _, _ in made}) == ROWS
    assert got == sorted((n, receipt) for _, n, receipt in made)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_killed_task_pays_nothing_twice(kit, spark, tmp_path, idempotent):
    if idempotent:
        declared = clonos.effect(partial(pay_by_key, tmp_path), idempotent=True)
    else:
        declared = clonos.effect(partial(pay, tmp_path), check=partial(find, tmp_path))
    job = build(tmp_path, declared, checkpoint_interval="1 hour").start(spark)
    wait_until_only_the_hanging_are_open(kit, job, tmp_path)
    kit.kill(job, "pay[0]")
    kit.wait_recovered(job, 1)
    (tmp_path / "gate").touch()
    check(tmp_path, job.wait(kit.WAIT_S).table())
    if not idempotent:
        checked = Counter(map(int, (tmp_path / "checks").read_text().split()))
        assert checked.keys() >= set(filter(hangs, range(ROWS))), "what was open"


def test_a_restart_pays_nothing_twice(kit, spark, tmp_path):
    declared = clonos.effect(partial(pay, tmp_path), check=partial(find, tmp_path))
    settings = {"checkpoint_interval": "200 ms", "checkpoint_dir": str(tmp_path / "job")}
    job = build(tmp_path, declared, **settings).start(spark)
    wait_until_only_the_hanging_are_open(kit, job, tmp_path)
    kit.wait_quiet(job, floors=2)  # fewer if attempts have timed out and nothing is left to seal
    job.stop()
    (tmp_path / "gate").touch()
    job = build(tmp_path, declared, **settings).start(spark)
    check(tmp_path, job.wait(kit.WAIT_S).table())


def test_what_nobody_can_know_ends_the_job_and_is_settled_by_the_next_start(kit, spark, tmp_path):
    """... of which the user has said how to find out."""
    settings = {"checkpoint_interval": "200 ms", "checkpoint_dir": str(tmp_path / "job")}
    blind = clonos.effect(partial(pay, tmp_path))
    job = build(tmp_path, blind, "1 s", **settings).start(spark)
    with pytest.raises(EffectUnknown, match=r"the effect \w{24}: nobody knows"):
        job.wait(kit.WAIT_S)
    (tmp_path / "gate").touch()
    seeing = clonos.effect(partial(pay, tmp_path), check=partial(find, tmp_path))
    job = build(tmp_path, seeing, "1 s", **settings).start(spark)
    check(tmp_path, job.wait(kit.WAIT_S).table())


def test_a_start_sends_no_key_that_the_service_may_have_forgotten(kit, spark, tmp_path):
    def start(keys_kept: str) -> Any:
        paying = partial(pay_by_key, tmp_path)
        declared = clonos.effect(paying, idempotent=True, keys_kept=keys_kept)
        how: dict[str, Any] = {"checkpoint_interval": "200 ms", "timeout": "1 minute"}
        return build(tmp_path, declared, checkpoint_dir=str(tmp_path / "job"), **how).start(spark)

    job = start("1 hour")
    wait_until_only_the_hanging_are_open(kit, job, tmp_path)
    job.stop()
    made = payments(tmp_path)
    with pytest.raises(EffectUnknown, match="the service may no longer recognise its key"):
        start("1 ms").wait(kit.WAIT_S)
    assert payments(tmp_path) == made, "nobody was asked"
    (tmp_path / "gate").touch()
    check(tmp_path, start("1 hour").wait(kit.WAIT_S).table())


@pytest.mark.parametrize(("before", "now"), [(None, "1 hour"), ("1 hour", None)])
def test_a_start_may_say_or_leave_out_how_long_keys_are_kept(kit, spark, tmp_path, before, now):
    """... although the steps that it replays have, or have not, read the clock."""

    def start(keys_kept: str | None) -> Any:
        paying = partial(pay_by_key, tmp_path)
        declared = clonos.effect(paying, idempotent=True, keys_kept=keys_kept)
        how: dict[str, Any] = {"checkpoint_interval": "1 hour", "timeout": "1 minute"}
        return build(tmp_path, declared, checkpoint_dir=str(tmp_path / "job"), **how).start(spark)

    job = start(before)
    wait_until_only_the_hanging_are_open(kit, job, tmp_path)
    job.stop()
    (tmp_path / "gate").touch()
    check(tmp_path, start(now).wait(kit.WAIT_S).table())


class Till:
    """A service outside of the job's processes, which knows the keys of what it has been paid.

    Of every third payment the first request is held up until the gate opens, and of half of these
    the second one, too. What is held up is paid then, whoever has hung up meanwhile.
    """

    def __init__(self) -> None:
        self.lock, self.gate = threading.Lock(), threading.Event()
        self.asked: Counter[str] = Counter()
        self.paid: dict[str, tuple[int, int]] = {}
        self.held_up = 0
        self.late = 0
        """How many of those have found their payment made."""

    def pay(self, key: str, n: int) -> int:
        with self.lock:
            self.asked[key] += 1
            is_held_up = hangs(n) and self.asked[key] <= (1 if n % 2 else 2)
            self.held_up += is_held_up
        if is_held_up:
            self.gate.wait()
        with self.lock:
            self.late += is_held_up and key in self.paid
            return self.paid.setdefault(key, (n, random.getrandbits(40)))[1]

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Yield its port."""
        till = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                key, n = self.rfile.readline().split()
                self.wfile.write(b"%d\n" % till.pay(key.decode(), int(n)))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 2 * ROWS

            def handle_error(self, request: Any, address: Any) -> None:
                """Whoever asked has hung up."""

        with Server(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()


async def pay_at(port: int, n: int, *, call: clonos.EffectCall) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{call.key} {n}\n".encode())
        return int(await reader.readline())
    finally:
        writer.close()


def test_a_hedge_that_loses_and_comes_through_after_a_recovery_pays_nothing(kit, spark, tmp_path):
    till, hanging = Till(), list(filter(hangs, range(ROWS)))
    open_ones = [n for n in hanging if n % 2 == 0]
    with till.serve() as port:
        declared = clonos.effect(partial(pay_at, port), idempotent=True)
        how: dict[str, Any] = {"timeout": "10 minutes", "hedge": "100 ms"}
        job = build(tmp_path, declared, checkpoint_interval="1 hour", **how).start(spark)
        kit.wait_for(lambda: job.delivered["out"] >= ROWS - len(open_ones))
        kit.wait_for(lambda: till.held_up == len(hanging) + len(open_ones))
        kit.kill(job, "pay[0]")
        table = job.wait(kit.WAIT_S).table()
        till.gate.set()
        kit.wait_for(lambda: till.late == till.held_up)
    got = sorted(zip(*table.to_pydict().values(), strict=True))
    assert got == sorted(till.paid.values())
    assert len(got) == ROWS, "each is paid once"
    assert min(till.asked[key] for key, (n, _) in till.paid.items() if n in open_ones) > 2
