"""Calls, clock and random numbers, in attempts of a task that this process plays itself."""

import asyncio
import io
import pickle
import time

import numpy as np
import pytest
from pyspark import cloudpickle, serializers

import clonos
from clonos import causal
from clonos.causal import gate, process
from clonos.causal import task as tasks
from clonos.causal.server import LogServer
from clonos.errors import CallError, DefinitionError, UnencodableValue, WrongType

from .conftest import Attempt, access_to


def test_a_failure_that_fails_the_task_is_no_answer(attempt, world):
    @causal.service
    def flaky(x):
        if world(x) == 0:
            raise ValueError("not today")
        return "well"

    with pytest.raises(ValueError, match="not today"), attempt():
        flaky(1)
    with attempt():
        assert flaky(1) == "well"


def test_a_failure_that_output_depends_on_is_an_answer(attempt, world):
    @causal.service
    def broken(x):
        world(x)
        raise ConnectionError("refused", x)

    @causal.service
    def strange():
        world()
        raise pickle.PicklingError("what?")

    def row():
        with pytest.raises(ConnectionError, match="refused") as caught:
            broken(7)
        with pytest.raises(CallError, match=r"PicklingError: what\?"):
            strange()
        return caught.value.args

    with attempt():
        first = row()
    with attempt():
        assert row() == first
    assert len(world.asked) == 2


def test_failures_and_answers_to_one_question_stay_in_order(attempt, world):
    @causal.service
    def flaky():
        if world() in {1, 3}:
            raise ConnectionError
        return "well"

    def outcomes():
        found = []
        for _ in range(5):
            try:
                found.append(flaky())
            except ConnectionError:
                found.append("failed")
            time.sleep(2 * tasks.LINGER_S)  # what may be sent early is
        return found

    with attempt():
        first = outcomes()
    with attempt():
        assert outcomes() == first == ["well", "failed", "well", "failed", "well"]
    assert len(world.asked) == 5


def test_many_at_a_time(attempt, world):
    running, most = set(), []

    @causal.service
    def slow(x, y):
        running.add(x)
        most.append(len(running))
        time.sleep(0.01)
        running.discard(x)
        if x == 3:
            raise ValueError(x)
        return world(x)

    def results():
        return slow.map(range(10), range(10), concurrency=4, return_exceptions=True)

    with attempt():
        first = results()
        assert isinstance(first[3], ValueError)
    with attempt():
        assert [repr(r) for r in results()] == [repr(r) for r in first]
        with pytest.raises(ValueError, match="3"):
            slow.map([1, 3], [1, 3])
    assert len(world.asked) == 9 + 1
    assert 1 < max(most) <= 4


def test_async_calls(attempt, world):
    running, most = set(), []

    @causal.service(timeout="200 ms")
    async def slow(x):
        running.add(x)
        most.append(len(running))
        await asyncio.sleep(10 if x == "hangs" else 0.01)
        running.discard(x)
        return world(x)

    async def several():
        return await asyncio.gather(*[slow(x) for x in "abc"])

    def results():
        mapped = slow.map([*range(8), "hangs"], concurrency=3, return_exceptions=True)
        assert isinstance(mapped.pop(), causal.ServiceTooSlow)
        return mapped, asyncio.run(several())

    with attempt():
        first = results()
    with attempt():
        assert results() == first
    assert len(world.asked) == 11
    assert max(most[:8]) == 3


def test_a_service_that_is_too_slow(attempt, world):
    @causal.service(timeout="50 ms")
    def slow(x):
        world(x)
        time.sleep(1)

    for _ in range(2):
        with attempt(), pytest.raises(causal.ServiceTooSlow, match=r"within 0\.05 s") as caught:
            slow(1)
        assert "timeout=" in str(caught.value)
        assert isinstance(caught.value, TimeoutError)
    assert len(world.asked) == 1


def test_retries_are_one_call(attempt, world):
    pytest.importorskip("tenacity")

    @causal.service(attempts=3, backoff=("1 ms", "1 ms"))
    def flaky(until):
        if world() < until:
            raise ConnectionError
        return "well"

    with attempt():
        assert flaky(2) == "well"
        with pytest.raises(ConnectionError):
            flaky(99)
    with attempt():
        assert flaky(2) == "well"
    assert len(world.asked) == 6


def test_the_clock_is_read_once_and_never_goes_back(attempt, monkeypatch):
    with attempt():
        first = [causal.clock.now_ms() for _ in range(3)]
        monkeypatch.setattr("time.time_ns", lambda: 5)
        first.append(causal.clock.now_ms())
        keyed = causal.clock.now("row 1")
    with attempt():
        assert [causal.clock.now_ms() for _ in range(4)] == first == sorted(first)
        assert causal.clock.now("row 1") == keyed
        assert keyed.tzinfo is not None


class _Driver:
    """The driver, in the thread of a query's foreachBatch function."""

    def __init__(self, **properties):
        self.properties = properties

    def getLocalProperty(self, name):  # noqa: N802 - Spark's name
        return self.properties.get(name)


def test_the_foreach_batch_function_is_a_task(server, world):
    @causal.service
    def flaky():
        number = world()
        if number in {0, 2}:
            raise ConnectionError
        return number

    def run(*, expected):
        query = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "5"}
        driver = _Driver(**query, **{"spark.jobGroup.id": "run"})
        process.connect(access_to(server), driver)
        succeeded = False
        try:
            answers = [flaky()]  # the first time this fails the function, and is no answer
            with pytest.raises(ConnectionError):
                flaky()
            answers.append(flaky())
            assert answers == expected
            succeeded = True
        finally:
            process.end_driver_task(succeeded=succeeded)
            process.connect(None)

    with pytest.raises(ConnectionError):
        run(expected=None)
    for _ in range(2):
        run(expected=[1, 3])
    assert len(world.asked) == 4


def test_on_the_driver(server):
    process.connect(access_to(server), _Driver())
    try:
        with pytest.raises(causal.OnDriver, match="or inside foreachBatch"):
            causal.call(dict)
    finally:
        process.connect(None)


def test_random_numbers_need_no_log(attempt, server):
    with attempt():
        first = [causal.random().random() for _ in range(3)]
        keyed = causal.random("row 1").random()
    with attempt():
        assert [causal.random().random() for _ in range(3)] == first
        assert len(set(first)) == 3
    with attempt(partition=1):
        assert causal.random("row 1").random() == keyed
        assert causal.random().random() not in first


def test_idempotency_keys(attempt):
    keys = []

    def work(_):
        keys.append(causal.idempotency_key())
        raise RuntimeError

    def twice():
        with pytest.raises(RuntimeError):
            causal.call(work, 1)
        causal.call(work, 1)

    for _ in range(2):
        with pytest.raises(RuntimeError), attempt():
            twice()
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2
    with pytest.raises(causal.OutsideTask):
        causal.idempotency_key()


def test_an_idempotent_effect_has_the_same_key_in_every_attempt_of_its_task(attempt):
    keys = []

    @causal.service(idempotent=True)
    def charge(customer, *, call):
        keys.append(call.key)
        raise ConnectionError

    for _ in range(2):
        with pytest.raises(ConnectionError), attempt():
            charge("a")
    with pytest.raises(ConnectionError), attempt():
        charge("b")
    first, again, other = keys
    assert first == again != other
    assert len(first) == 24


def test_an_effect_that_a_retry_would_make_again_is_not_made(attempt, world):
    @causal.service(check=lambda x: causal.clock.now())
    def book(x):
        world(x)

    for _ in range(2):
        with pytest.raises(causal.NotIdempotent, match="make it again"), attempt():
            book(1)
    assert not world.asked


def keys_of(attempt, rows, **options):
    """The key that each call had, by what it was about, in an attempt that then dies."""
    keys: dict[int, list[str]] = {}

    @causal.service
    def charge(customer):
        keys.setdefault(customer, []).append(causal.idempotency_key())
        return customer

    with attempt(dies=True, **options):
        for row in rows:
            charge(row)
    return keys


def test_a_key_names_what_is_asked_not_where(attempt):
    """An attempt dies before its answers are logged; the next has its rows in another order."""
    first = keys_of(attempt, [1, 2, 3, 2])
    again = keys_of(attempt, [2, 3, 2, 1])
    assert {row: set(keys) for row, keys in again.items()} == {
        row: set(keys) for row, keys in first.items()
    }
    named = [key for keys in first.values() for key in keys]
    assert len(set(named)) == 4, "two equal charges are two"


def test_a_fresh_run_of_the_same_name_has_other_keys(attempt):
    first = keys_of(attempt, [1, 2])
    with attempt():
        process.holder().forget("run")  # as at the end of a run
    again = keys_of(attempt, [1, 2])
    assert not {key for keys in first.values() for key in keys} & {
        key for keys in again.values() for key in keys
    }


def test_the_operator_is_the_outermost_function_unless_named(attempt, ask):
    def inner():
        return ask("a")

    with attempt():
        inner()
        task = process.current()
        assert len(task.logs) == 1
        causal.operator(inner, name="mine")()
        assert "mine" in task.logs
        rows = causal.operator(lambda rows: (ask(r) for r in rows), name="generated")("xy")
        assert list(rows) == [2, 3]
        assert "generated" in task.logs


@pytest.mark.parametrize(
    ("fn", "remedy"),
    [
        (lambda: causal.call(dict), "ask inside a function that Spark runs"),
        (causal.clock.now, "ask inside a function that Spark runs"),
        (causal.random, "ask inside a function that Spark runs"),
    ],
)
def test_outside_a_task(fn, remedy):
    with pytest.raises(causal.OutsideTask, match=remedy):
        fn()


def test_without_a_log(attempt):
    with attempt():
        process.connect(None)
        with pytest.raises(causal.NotConnected, match=r"causal\.start"):
            causal.call(dict)
        process.connect(attempt.access)


def test_what_cannot_be_kept(attempt):
    with attempt():
        with pytest.raises(UnencodableValue, match="answer of object cannot be kept"):
            causal.call(object)
        with pytest.raises(UnencodableValue, match="pass plain values"):
            causal.call(len, object())


def test_the_log_is_full(tmp_path):
    def too_much():
        causal.call(bytes, 1000)
        process.settle()

    with (
        LogServer(tmp_path / "small", bytes_max=400) as small,
        pytest.raises(causal.LogFull, match="bytes_max"),
        Attempt(access_to(small))(),
    ):
        too_much()


def test_the_log_is_gone(tmp_path, ask, monkeypatch):
    monkeypatch.setattr(tasks, "REOPEN_S", 0.2)
    gone = LogServer(tmp_path / "gone")

    def go_on():
        ask("a")
        process.settle()
        gone.close()
        ask("b")  # kept here: had it been asked before, it might be in the log already
        with pytest.raises(causal.LogUnreachable, match="driver"):
            process.settle()
        ask("c")

    with pytest.raises(causal.LogUnreachable), Attempt(access_to(gone))():
        go_on()


@pytest.mark.parametrize("options", [{"attempts": 0}, {"timeout": "0 seconds"}, {"check": 3}])
def test_wrong_definitions(options):
    with pytest.raises(DefinitionError):
        causal.service(dict, **options)
    with pytest.raises(DefinitionError):
        causal.service(3)  # type: ignore[call-overload]


def test_the_service_of_a_job_is_no_function():
    class Judge(clonos.Service):
        async def call(self, text):
            return text

    with pytest.raises(WrongType, match=r"Judge is a class.*make an object of it, Judge\(\)"):
        clonos.service(timeout="1 s")(Judge)
    with pytest.raises(DefinitionError, match=r"not a function.*where it is used"):
        clonos.service(timeout="1 s")(Judge())  # type: ignore[type-var]


def test_causal_itself_is_the_decorator():
    @causal(timeout="1 second")  # type: ignore[operator]
    def one():
        """Ask."""

    @causal  # type: ignore[operator]
    def two(): ...

    assert isinstance(one, causal.Service)
    assert isinstance(two, causal.Service)
    assert one.__doc__ == "Ask."
    assert causal.service(one) is one


def test_functions_carry_the_log_and_nothing_shows_the_secret(server):
    access = access_to(server)
    assert server.secret.key.hex() not in repr(access)
    assert repr(server.secret.key) not in repr(access)
    process.connect(access)
    try:
        for shipped in (
            causal.service(len),
            causal.call,
            causal.clock,
            causal.random,
            causal.operator(len),
            lambda: causal.clock.now_ms() + 1,
        ):
            data = cloudpickle.dumps(shipped)
            process.connect(None)
            cloudpickle.loads(data)
            assert process.access() == access
    finally:
        process.connect(None)


def test_nothing_leaves_before_it_is_durable(attempt, server, ask):
    """The gate: bytes are written only when the answers are in the log."""
    seen = []

    class Out(io.BytesIO):
        def write(self, data):
            seen.append((server.nbytes, len(data)))
            return super().write(data)

    def rows():
        for x in range(250):
            yield ask(x)

    kinds = (
        lambda: serializers.BatchedSerializer(serializers.CPickleSerializer(), 100),
        lambda: serializers.AutoBatchedSerializer(serializers.CPickleSerializer()),
    )
    for partition, make in enumerate(kinds):
        seen.clear()
        out, guarded = Out(), gate._guarded(type(make()).dump_stream)
        before = server.nbytes
        with attempt(partition):
            guarded(make(), rows(), out)
        assert sum(size for _, size in seen) > 500
        assert seen[0][0] > before
    out.seek(0)
    assert list(make().load_stream(out)) == list(range(250, 500))


def test_a_gate_that_came_too_late_makes_every_answer_durable(attempt, server, ask, monkeypatch):
    monkeypatch.setattr(gate._gate, "is_installed", False)
    with attempt():
        gate._gate.is_installed = False
        held = server.nbytes
        for x in range(3):
            ask(x)
            assert server.nbytes > held
            held = server.nbytes


def test_arrays_are_answers_and_arguments(attempt, world):
    @causal.service
    def embed(texts):
        world()
        return np.random.default_rng().random((len(texts), 4))

    texts = np.array(["a", "b"])
    with attempt():
        first = embed(texts)
    with attempt():
        np.testing.assert_array_equal(embed(texts.copy()), first)
    assert len(world.asked) == 1
