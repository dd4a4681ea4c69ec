"""The log's decisions in a world without sockets and disks: clients that come and go, a disk that
is slow, fails or is lost in mid-write, drivers that die.

What was said once must stay true: an acknowledged answer is there, what one reader has seen every
reader sees, a seed that was told is the scope's, nobody appends to a log that is another's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from clonos.causal import messages as m
from clonos.causal.book import AnswerBook
from clonos.causal.node import (
    MEND_S,
    SILENT_S,
    AnswerNode,
    Judged,
    Stop,
    WriteFailed,
    Written,
)
from clonos.errors import JournalBroken
from clonos.errors.causal import UnsupportedQuery
from clonos.transport.events import ClientClosed, ClientOpened
from tests.link import Link

SEEDS = 150


class Peer(Link):
    """What is sent waits until the world delivers it."""

    def take(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent

    def one(self) -> Any:
        (reply,) = self.take()
        return reply


class Disk:
    """A journal: what is written is there at :meth:`settle`, as a whole or not at all."""

    def __init__(self, records: list[bytes] | None = None) -> None:
        self.records = records or []
        self.orders: list[str] = []
        self._pending: list[bytes] | None = None

    def write(self, records: Any) -> None:
        self._order("write", self.records + list(records))

    def rotate(self, head: Any) -> None:
        self._order("rotate", list(head))

    def vouch(self) -> None:
        self._order("vouch", self.records)

    def _order(self, what: str, records: list[bytes]) -> None:
        assert self._pending is None, "one group at a time"
        self.orders.append(what)
        self._pending = records

    @property
    def is_busy(self) -> bool:
        return self._pending is not None

    def settle(self) -> Written:
        assert self._pending is not None
        self.records, self._pending = self._pending, None
        return Written(sum(map(len, self.records)))

    def fail(self, *, is_there: bool) -> WriteFailed:
        assert self._pending is not None
        if is_there:  # it was written, and an error was said
            self.records = self._pending
        self._pending = None
        return WriteFailed(JournalBroken("no space left"))

    def crash(self, *, is_there: bool) -> list[bytes]:
        return self._pending if is_there and self._pending is not None else self.records


@dataclass
class World:
    """One driver after the other on one disk."""

    bytes_max: int = 1 << 20
    judge: Callable[[str, int], None] | None = None
    now_s: float = 0.0
    disk: Disk = field(default_factory=Disk)
    seeds: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        book = AnswerBook(self.bytes_max, self._new_seed)
        book.recover(self.disk.records)
        self.book = book
        self.peers: dict[int, Peer] = {}
        self.node = AnswerNode(book, self.disk, 0, self.judge)

    def _new_seed(self) -> bytes:
        self.seeds += 1
        return self.seeds.to_bytes(16, "big")

    def turn(self, *events: Any) -> float:
        wait_s = self.node.turn(events, self.now_s)
        self.node.check()
        return wait_s

    def connect(self, conn_id: int) -> Peer:
        peer = self.peers[conn_id] = Peer(conn_id)
        self.turn(ClientOpened(conn_id, peer))
        return peer

    def crash(self, *, is_there: bool) -> None:
        self.disk = Disk(self.disk.crash(is_there=is_there))
        self.start()


KEY = m.AnswerKey("q", 0, "f", 0)


def open_(ticket: int = 1, key: m.AnswerKey = KEY, attempt: str = "a", **more: Any) -> m.Open:
    options = {"process": attempt, "execution": "e", "take_over": False, **more}
    return m.Open(key, attempt, ticket=ticket, **options)


def opened(world: World, conn_id: int = 1, **more: Any) -> Peer:
    peer = world.connect(conn_id)
    world.turn((conn_id, open_(**more)))
    if world.disk.is_busy:
        world.turn(world.disk.settle())
    assert isinstance(peer.one(), m.Opened)
    return peer


def test_nothing_is_acknowledged_before_it_is_durable():
    world = World()
    peer = opened(world)
    world.turn((1, m.Append(KEY, "e", b"one", 2)))
    assert peer.take() == []
    world.turn(world.disk.settle())
    assert peer.one() == m.Done(2)


def test_what_comes_while_the_disk_works_is_one_group():
    world = World()
    peer = opened(world)
    world.turn((1, m.Append(KEY, "e", b"0", 2)))
    for number in range(1, 10):
        world.turn((1, m.Append(KEY, "e", b"%d" % number, 2 + number)))
    world.turn(world.disk.settle())
    assert peer.one() == m.Done(2)
    world.turn(world.disk.settle())
    assert peer.take() == [m.Done(ticket) for ticket in range(3, 12)]
    assert world.disk.orders[-2:] == ["write", "write"]


def test_a_seed_is_told_when_it_is_durable():
    """Rows may depend on it without any answer that would be appended."""
    world = World()
    peer = world.connect(1)
    world.turn((1, open_()))
    assert peer.take() == []
    world.turn(world.disk.settle())
    told = peer.one()
    world.crash(is_there=False)
    again = world.connect(1)
    world.turn((1, open_(attempt="b")))
    assert again.one().seed == told.seed


def test_what_was_forgotten_stays_forgotten():
    world = World()
    peer = opened(world)
    world.turn((1, m.Append(KEY, "e", b"one", 2)))
    world.turn(world.disk.settle())
    world.turn((1, m.Forget("q", 3)))
    assert peer.take() == [m.Done(2)]
    world.turn(world.disk.settle())
    assert peer.one() == m.Done(3)
    world.crash(is_there=False)
    assert world.book.nbytes == 0


def test_news_are_read_when_they_are_durable():
    world = World()
    opened(world)
    reader = world.connect(2)
    world.turn((2, m.Read(KEY, 0, 5_000, 1)))
    world.turn((1, m.Append(KEY, "e", b"news", 2)))
    assert reader.take() == []
    world.turn(world.disk.settle())
    assert reader.one() == m.Chunks((b"news",), is_free=False, ticket=1)


def test_a_reader_waits_no_longer_than_it_said():
    world = World()
    opened(world)
    reader = world.connect(2)
    assert world.turn((2, m.Read(KEY, 0, 500, 1))) == 0.5
    world.now_s = 0.5
    world.turn()
    assert reader.one() == m.Chunks((), is_free=False, ticket=1)


def test_who_waits_hears_that_the_owner_is_gone():
    world = World()
    opened(world)
    reader = world.connect(2)
    world.turn((2, m.Read(KEY, 0, 5_000, 1)))
    world.turn(ClientClosed(1))
    assert reader.one() == m.Chunks((), is_free=True, ticket=1)


def test_a_silent_owner_is_taken_for_dead_and_fenced():
    world = World()
    owner, other = opened(world), world.connect(2)
    world.turn((2, open_(attempt="b")))
    assert not other.one().owner
    world.now_s = SILENT_S + 1
    world.turn((2, open_(attempt="b")))
    assert other.one().owner
    world.turn((1, m.Append(KEY, "e", b"late", 2)))
    assert owner.one().error == "Fenced"


def test_a_beat_is_a_sign_of_life():
    world = World()
    owner, other = opened(world), world.connect(2)
    world.now_s = SILENT_S
    world.turn((1, m.Beat(2)))
    assert owner.one() == m.Done(2)
    world.now_s += SILENT_S
    world.turn((2, open_(attempt="b")))
    assert not other.one().owner


def test_a_disk_that_has_failed_is_tried_again_with_everything():
    world = World()
    peer = opened(world)
    world.turn((1, m.Append(KEY, "e", b"one", 2)))
    world.turn(world.disk.fail(is_there=False))
    assert peer.one().error == "LogBroken"
    world.turn((1, m.Append(KEY, "e", b"two", 3)))
    assert not world.disk.is_busy
    world.now_s += MEND_S
    world.turn()
    assert world.disk.orders[-1] == "rotate"
    world.turn(world.disk.settle())
    assert peer.one() == m.Done(3)
    world.turn((1, m.Read(KEY, 0, 0, 4)))
    assert peer.one().chunks == (b"one", b"two")  # the first one is in doubt: either is right


def test_an_idle_log_vouches_for_its_last_group_once():
    world = World()
    opened(world)
    world.turn()
    assert world.disk.orders[-1] == "vouch"
    world.turn(world.disk.settle())
    world.turn()
    assert not world.disk.is_busy


def test_what_is_left_is_written_at_the_end():
    world = World()
    peer = opened(world)
    world.turn((1, m.Append(KEY, "e", b"one", 2)))
    world.turn((1, m.Append(KEY, "e", b"two", 3)), Stop())
    was_over = []
    while world.disk.is_busy:
        was_over.append(world.node.is_over)
        world.turn(world.disk.settle())
    assert [*was_over, world.node.is_over] == [False, False, True]
    assert peer.take() == [m.Done(2), m.Done(3)]


def test_a_batch_is_judged_once_and_whoever_left_meanwhile_owns_nothing():
    judged = []
    world = World(judge=lambda scope, batch: judged.append((scope, batch)))
    left, stays = world.connect(1), world.connect(2)
    world.turn((1, open_()), (2, open_(key=KEY._replace(partition=1))))
    assert judged == [("q", 0)]
    world.turn(ClientClosed(1))
    world.turn(Judged("q", 0))
    world.turn(world.disk.settle())
    assert left.take() == []
    assert stays.one().owner
    assert world.book.owner(KEY) is None
    world.turn((2, open_(2)))
    assert stays.one().owner
    assert judged == [("q", 0)]


def test_a_refused_batch_is_judged_anew():
    judged = []
    world = World(judge=lambda scope, batch: judged.append((scope, batch)))
    peer = world.connect(1)
    for ticket in (1, 2):
        world.turn((1, open_(ticket)))
        world.turn(Judged("q", 0, UnsupportedQuery("it does not wait", remedy="let it")))
        assert peer.one() == m.Failed("UnsupportedQuery", "it does not wait", "let it", ticket)
    assert judged == [("q", 0)] * 2


def test_who_speaks_of_something_else_is_cut_off():
    world = World()
    peer = world.connect(1)
    world.turn((1, m.Done(1)))
    assert peer.is_closed


# --- any order of anything ----------------------------------------------------------------------


class History:
    """What was ever said to anybody."""

    def __init__(self) -> None:
        self.seen: dict[tuple[m.AnswerKey, int], bytes] = {}
        self.acknowledged: dict[m.AnswerKey, list[bytes]] = {}
        self.seeds: dict[str, bytes] = {}

    def saw(self, key: m.AnswerKey, since: int, chunks: tuple[bytes, ...]) -> None:
        for number, chunk in enumerate(chunks, since):
            assert self.seen.setdefault((key, number), chunk) == chunk, "it was another one"

    def told(self, scope: str, seed: bytes) -> None:
        assert self.seeds.setdefault(scope, seed) == seed, "the seed was another one"

    def check(self, book: AnswerBook) -> None:
        """Everything that was acknowledged is there, in order."""
        for key, chunks in self.acknowledged.items():
            there = iter(book.read(key, 0))
            assert all(chunk in there for chunk in chunks), f"{key} lost an answer"


class Attempt:
    """A task's attempt that says one thing after the other, as it likes."""

    def __init__(self, draw: random.Random, history: History, peer: Peer, name: str) -> None:
        self.draw, self.history, self.peer, self.name = draw, history, peer, name
        self.key = m.AnswerKey("qr"[draw.randrange(2)], 0, "f", 0)
        self.asked: Any = None
        self.is_owner = self.is_over = False
        self._numbers = 0

    def next_request(self) -> Any:
        likes = (1, 20, 10, 1) if self.is_owner else (10, 2, 10, 0)
        what = self.draw.choices(("open", "append", "read", "close"), likes)[0]
        if what == "open":
            take_over = self.draw.random() < 0.1
            request: Any = open_(1, self.key, self.name, take_over=take_over)
        elif what == "append":
            self._numbers += 1
            request = m.Append(self.key, "e", f"{self.name}.{self._numbers}".encode(), 1)
        elif what == "read":
            request = m.Read(self.key, 0, self.draw.choice((0, 0, 3_000)), 1)
        else:
            request = m.Close(self.key, 1)
        self.asked = request
        return request

    def hear(self, reply: Any) -> None:
        request, self.asked = self.asked, None
        if isinstance(reply, m.Opened):
            self.history.told(self.key.scope, reply.seed)
            self.is_owner = reply.owner
        elif isinstance(reply, m.Chunks):
            self.history.saw(self.key, 0, reply.chunks)
        elif isinstance(reply, m.Failed):
            assert reply.error in {"Fenced", "LogBroken"}
            self.is_owner = False
        elif isinstance(request, m.Append):
            self.history.acknowledged.setdefault(self.key, []).append(request.chunk)


class Run:
    """One seed's world, with attempts that come and go."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = World()
        self.history = History()
        self.attempts: dict[int, Attempt] = {}
        self._numbers = 0

    def step(self) -> None:
        draw, world = self.draw, self.world
        world.now_s += draw.choice((0.0, 0.01, 0.5))
        match draw.choices(("come", "go", "ask", "disk", "late", "crash"), (4, 1, 12, 4, 4, 0.5))[
            0
        ]:
            case "come" if len(self.attempts) < 5:
                self._numbers += 1
                peer = world.connect(self._numbers)
                name = f"attempt {self._numbers}"
                self.attempts[self._numbers] = Attempt(draw, self.history, peer, name)
            case "go" if self.attempts:
                self._end(draw.choice(list(self.attempts)))
            case "ask":
                free = [i for i, a in self.attempts.items() if a.asked is None]
                group = draw.sample(free, draw.randint(0, len(free)))
                world.turn(*((i, self.attempts[i].next_request()) for i in group))
            case "disk" if world.disk.is_busy:
                if draw.random() < 0.1:
                    world.turn(world.disk.fail(is_there=draw.random() < 0.5))
                else:
                    world.turn(world.disk.settle())
            case "crash":
                world.crash(is_there=draw.random() < 0.5)
                self.attempts.clear()
                self.history.check(world.book)
            case _:
                world.turn()
        if draw.random() < 0.7:
            self.deliver()
            self.history.check(world.book)

    def deliver(self) -> None:
        for attempt in list(self.attempts.values()):
            for reply in attempt.peer.take():
                attempt.hear(reply)

    def _end(self, number: int) -> None:
        self.world.turn(ClientClosed(number))
        attempt = self.attempts.pop(number)
        if attempt.asked is not None:
            for reply in attempt.peer.take():  # on its way when the other end died
                attempt.hear(reply)

    def heal(self) -> None:
        """When the disk is well again, everybody is answered."""
        for _ in range(60):
            self.world.now_s += MEND_S
            self.world.turn()
            while self.world.disk.is_busy:
                self.world.turn(self.world.disk.settle())
            self.deliver()
        assert not [a.asked for a in self.attempts.values() if a.asked is not None]
        self.world.crash(is_there=False)
        self.history.check(self.world.book)


def run(seed: int, steps: int = 250) -> Run:
    it = Run(seed)
    for _ in range(steps):
        it.step()
    it.heal()
    return it


def run_all() -> int:
    """How many answers were acknowledged, in all seeds."""
    acknowledged = 0
    for seed in range(SEEDS):
        try:
            it = run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += sum(map(len, it.history.acknowledged.values()))
    return acknowledged


def test_any_order_of_anything():
    assert run_all() > 10 * SEEDS


class _Nobody:
    is_gone = False

    def send(self, reply: Any) -> None:
        pass


_NOBODY: Any = _Nobody()


def _answers_at_once(node: AnswerNode, client: Any, reply: Any, record: int) -> None:
    client.send(reply)
    if record > node._book.durable:  # it is written nevertheless
        node._unsettled.append((record, _NOBODY, reply))


def _everything_is_durable(book: AnswerBook, key: m.AnswerKey, since: int) -> list[bytes]:
    log = book.find(key)
    return [] if log is None else log.chunks[since:]


def _forgets_what_failed(book: AnswerBook) -> list[bytes]:
    book._written = []
    return _take_records(book)


def _depends_on_its_log_only(book: AnswerBook, key: m.AnswerKey) -> int:
    log = book.find(key)
    return log.record if log is not None else 0


_take_records = AnswerBook.take_records


@pytest.mark.parametrize(
    ("cls", "name", "mutant", "complaint"),
    [
        (AnswerNode, "_answer", _answers_at_once, "lost an answer"),
        (AnswerBook, "read", _everything_is_durable, "another one"),
        (AnswerBook, "take_records", _forgets_what_failed, "lost an answer"),
        (AnswerBook, "depends", _depends_on_its_log_only, "the seed was another one"),
    ],
)
def test_what_is_wrong_is_found(monkeypatch, cls, name, mutant, complaint):
    monkeypatch.setattr(cls, name, mutant)
    with pytest.raises(AssertionError, match=complaint):
        run_all()
