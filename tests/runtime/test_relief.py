"""What a slot says while user code runs: gates, no clocks."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core.determinants import Source, encode_record
from clonos.core.messages import Dependency, Item, Kind, Run
from clonos.core.plan import Incarnation
from clonos.nodes.ports import SlotPorts
from clonos.nodes.seal_times import SealSettings
from clonos.nodes.slot import SlotNode
from clonos.runtime.loop import SlotLoop, Ticks
from clonos.runtime.relief import LOOK_S, MainTrack, Relief, serve
from clonos.runtime.world import RealWorld
from clonos.simulator.jobs.programs import Stage, build_job
from clonos.simulator.world.virtual import batch_of
from clonos.transport.events import ChannelOpened

OLD, NEW = Incarnation(1, 0), Incarnation(1, 1)
SOURCE = encode_record([Source(1, 0, None)])
LEFT, RIGHT, TASK = 0, 1, 2
JOB = build_job(
    (
        Stage("left", 1, ()),
        Stage("right", 1, ()),
        Stage("both", 1, (0, 1)),
        Stage("sink", 1, (2,), is_sink=True),
    ),
    sharing_depth=1,
    rows=5,
)
(FROM_LEFT, FROM_RIGHT) = JOB.plan.tasks[TASK].inputs
TO_SINK = next(c for c in JOB.plan.tasks[TASK].outputs if JOB.plan.channels[c].receiver == 3)
CONTROL = 0
LIMIT_S = 60


class Waiting:
    """A program whose calls wait at a gate."""

    makes_calls = False

    def __init__(self, slot: Slot) -> None:
        slot.threads.add(threading.current_thread())
        self._slot, self._emit = slot, JOB.program(TASK)

    def on_batches(self, step: Any, channel: int, batches: Any, watermark_ms: Any) -> None:
        self._slot.threads.add(threading.current_thread())
        step.call(self._ask, (), {})
        self._emit.on_batches(step, channel, batches, watermark_ms)

    def _ask(self) -> None:
        self._slot.inside.release()
        assert self._slot.gate.acquire(timeout=LIMIT_S)

    def delta(self) -> bytes:
        return b""


class End:
    """One end of a connection: says what was sent."""

    stood = True

    def __init__(self, slot: Slot, conn_id: int) -> None:
        self._slot, self.conn_id = slot, conn_id

    def send(self, message: Any) -> None:
        self._slot.said.put(message)

    def close(self) -> None:
        pass


class Slot:
    """A slot's loop, in a thread of its own; its network are two queues."""

    address, listened_s = "here", 0.0

    def __init__(self) -> None:
        self.heard: queue.Queue[Any] = queue.Queue()
        self.said: queue.Queue[Any] = queue.Queue()
        self.inside, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: set[threading.Thread] = set()
        self.track = MainTrack(lambda: self.heard.put(None))
        unused: Any = SimpleNamespace(can_reopen=True)
        calls: Any = SimpleNamespace(withdraw=id, away=lambda life: {})
        world = RealWorld()
        programs: Any = lambda _: Waiting(self)  # noqa: E731
        self.node = SlotNode(
            JOB.plan,
            SlotPorts(
                self, Ticks(), self.track, unused, unused,
                programs, lambda *_: world, lambda *_: None, calls, SimpleNamespace(withdraw=id),
            ),
            share_s=LIMIT_S,
            seals=SealSettings(LIMIT_S),
            unreachable_s=LIMIT_S,
        )  # fmt: skip
        self.node.join(End(self, CONTROL))
        arguments = (self.node, self.poll, self.track, lambda: None)
        self.loop = threading.Thread(target=serve, args=arguments)

    def poll(self, wait_s: float) -> list[Any]:
        things = []
        try:
            things.append(self.heard.get(timeout=wait_s) if wait_s else self.heard.get_nowait())
        except queue.Empty:
            return []
        return [thing for thing in things if thing is not None]

    def flush(self) -> None:
        pass

    def connect(self, *_: Any) -> End:
        return End(self, 90)

    def orders(self, command: Any) -> None:
        self.heard.put((CONTROL, command))

    def tells(self, command: Any) -> None:
        self.orders(msg.ToTask(TASK, command))

    def next(self, kind: Any) -> Any:
        while not isinstance(said := self.said.get(timeout=LIMIT_S), kind):
            pass
        return said

    def becomes(self, incarnation: Incarnation) -> None:
        self.orders(msg.Activate(TASK, incarnation, (), (), (), ()))

    def gives(self, channel: int, item: Item) -> None:
        sender = JOB.plan.channels[channel].sender
        runs = (Run(sender, OLD, item.seq, (SOURCE,)),)
        self.heard.put((10 + channel, msg.Data(channel, OLD, item, runs)))

    def opens(self, channel: int, receiver: Incarnation) -> None:
        conn = 10 + channel
        self.heard.put(ChannelOpened(channel, conn, OLD, receiver, End(self, conn)))


def batch(channel: int, seq: int) -> Item:
    dep = {JOB.plan.channels[channel].sender: Dependency(OLD, seq)}
    return Item(seq, Kind.BATCH, 0, 0, batch_of(((seq, seq),)), dep, seq)


@pytest.fixture
def slot():
    """A slot whose task is inside a call that waits at a gate."""
    slot = Slot()
    slot.becomes(OLD)
    slot.loop.start()
    slot.next(msg.Live)
    for channel in (FROM_LEFT, FROM_RIGHT):
        slot.opens(channel, OLD)
        slot.next(msg.Hello)
    slot.tells(msg.Connect(msg.Peer(TO_SINK, OLD, "there")))
    slot.heard.put((90, msg.Hello(TO_SINK, OLD, 1, 0, {})))
    slot.gives(FROM_LEFT, batch(FROM_LEFT, 1))
    assert slot.inside.acquire(timeout=LIMIT_S)
    yield slot
    for _ in range(9):
        slot.gate.release()
    slot.orders(msg.Stop())
    slot.loop.join(LIMIT_S)
    assert not slot.loop.is_alive()


def test_a_fence_is_answered_inside_a_call_and_counts_its_step(slot):
    slot.tells(msg.Fence(LEFT, NEW))
    answer = slot.next(msg.FenceAnswer)
    assert (answer.task, answer.dep) == (LEFT, Dependency(OLD, 1))
    slot.gate.release()
    sent = slot.next(msg.Data)
    assert sent.item is not None
    assert sent.item.dep[LEFT] == Dependency(OLD, 1)


def test_log_entries_of_other_tasks_are_taken_inside_a_call(slot):
    for seq in (1, 2):
        slot.gives(FROM_RIGHT, batch(FROM_RIGHT, seq))
    slot.tells(msg.Fence(RIGHT, NEW))
    answer = slot.next(msg.FenceAnswer)
    assert (answer.length, answer.dep) == (2, None)


def test_the_heartbeat_says_since_when_a_long_step_is_under_way(slot):
    slot.tells(msg.Fence(RIGHT, NEW))
    slot.next(msg.FenceAnswer)  # somebody has taken over
    assert slot.track.long is not None
    assert slot.node.name_of(slot.track.long[0]) == "both[0]"
    assert slot.node.progress == 0
    slot.gate.release()
    slot.next(msg.Data)
    slot.tells(msg.ReadLog(TASK, 1))
    slot.next(msg.LogPrefix)
    assert slot.track.long is None
    assert slot.node.progress == 1


def test_user_code_always_runs_in_the_same_thread_also_of_the_next_life(slot):
    """It comes while the old one is inside a call, which then raises what nobody catches."""
    slot.tells(msg.Fence(TASK, NEW))
    slot.becomes(NEW)
    slot.tells(msg.Fence(LEFT, NEW))  # waits until the new life is there
    slot.gate.release()
    assert slot.next(msg.Restored).incarnation == NEW
    assert slot.next(msg.FenceAnswer).dep is None
    slot.opens(FROM_RIGHT, NEW)
    slot.gives(FROM_RIGHT, batch(FROM_RIGHT, 1))
    assert slot.inside.acquire(timeout=LIMIT_S)
    assert slot.threads == {slot.loop}


def test_a_step_that_has_ended_goes_on_in_the_loop(slot):
    for seq in (2, 3):
        slot.gives(FROM_LEFT, batch(FROM_LEFT, seq))
    slot.tells(msg.Fence(RIGHT, NEW))
    slot.next(msg.FenceAnswer)
    for _ in range(3):
        slot.gate.release()
    sent = [slot.next(msg.Data).item for _ in range(2)]  # what waited is taken as one
    assert [item.seq for item in sent] == [1, 2]


def test_what_a_turn_of_the_relief_raises_ends_the_loop():
    """And the connections, at once: user code may go on for hours."""
    track = MainTrack(lambda: None)
    hung_up = threading.Event()

    def turn(_: float) -> float:
        raise ValueError("in the relief")

    relief = Relief(track, turn, hung_up.set)
    relief.start()
    assert track.run(1, lambda: hung_up.wait(LIMIT_S))
    assert hung_up.is_set()
    relief.stop()
    assert isinstance(relief.error, ValueError)


def test_a_turn_that_takes_long_is_known_though_it_is_no_step(monkeypatch):
    """It makes what a task runs, say, and the user's `open` does not return."""
    track, told = MainTrack(lambda: None), []

    class Node:
        is_over = False
        progress = 7

        def turn(self, heard: Any) -> float:
            assert track.turns_since_s is not None
            now_s = track.turns_since_s + 31.0
            monkeypatch.setattr("clonos.runtime.loop.time.monotonic", lambda: now_s)
            slot: Any = SimpleNamespace(_track=track, _node=self, _thread=0)
            told.append(SlotLoop._progress(slot))
            monkeypatch.undo()
            told.append(SlotLoop._progress(slot))
            self.is_over = True
            return 0.0

        def close(self) -> None: ...

    node: Any = Node()
    serve(node, lambda wait_s: [], track, lambda: None)
    assert told == [(7, 31_000, "", ""), (7, 0, "", "")]
    assert track.turns_since_s is None


class Looks(threading.Event):
    """How often the relief has looked."""

    count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return super().wait(timeout)


def test_nobody_looks_while_nothing_runs_and_the_next_job_is_relieved_all_the_same():
    track, turned = MainTrack(lambda: None), threading.Event()

    def turn(_: float) -> float:
        turned.set()
        return LOOK_S

    relief = Relief(track, turn, lambda: None)
    looks = relief._stopped = Looks()
    relief.start()
    for _ in range(3):
        assert track.run(1, lambda: None)
        until = time.monotonic() + LIMIT_S
        while track.is_used.is_set():
            assert time.monotonic() < until
            time.sleep(0.001)
        before = looks.count
        time.sleep(10 * LOOK_S)
        assert looks.count == before
        turned.clear()
        assert track.run(1, lambda: turned.wait(LIMIT_S))
        assert turned.is_set()
    relief.stop()


class Panic(BaseException):
    """As Rust raises it through PyO3."""


def test_what_is_no_exception_fails_the_step_and_not_the_process():
    def job() -> None:
        raise Panic("at the third row")

    track = MainTrack(lambda: None)
    track.baton.acquire()
    with pytest.raises(RuntimeError, match="Panic: at the third row") as caught:
        track.run(1, job)
    assert any(entry.name == "job" for entry in caught.traceback), "the user's own lines"
    assert track.is_free
