"""A slot fetches the layers that it is to keep, and gives others those that it has."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from clonos.core.levels import (
    LOCAL,
    MEMORY,
    SHELF,
    Discard,
    Held,
    Hold,
    Lacks,
    LayerPart,
    LayerRef,
    LayersHere,
    LayerWanted,
    MergeLayers,
)
from clonos.core.plan import Incarnation
from clonos.errors import UnreadableLayer
from clonos.nodes.events import FetchFailed, Kept, Looked, MergedHere, PartRead
from clonos.nodes.keeping import AGAIN_S, ANSWER_S, Keeping
from clonos.transport.events import ChannelClosed, ChannelOpened

LIFE = Incarnation(1, 0)


def ref(epoch: int, life: Incarnation = LIFE) -> LayerRef:
    return LayerRef(0, epoch, life, epoch, f"0/{epoch}-{life.n}", 10, 1, MEMORY)


def test_what_earlier_lives_have_left_on_the_disk_goes() -> None:
    world = World()
    hold = Hold(0, Incarnation(1, 2), (ref(1),), ("a",), tidies=True)
    world.keeping.hold(hold)
    assert ("tidy", 0, Incarnation(1, 2), {ref(1).path}) in world.asked
    world.asked.clear()
    world.keeping.hold(replace(hold, tidies=False))
    assert "tidy" not in [asked[0] for asked in world.asked]


class Line:
    def __init__(self, conn_id: int, address: str = "") -> None:
        self.conn_id, self.address, self.stood = conn_id, address, True
        self.said: list[Any] = []
        self.is_closed = False

    def send(self, message: Any) -> None:
        self.said.append(message)

    def close(self) -> None:
        self.is_closed = True


class World:
    """The ports of a slot: what is asked of them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[Any, ...]] = []
        self.lines: list[Line] = []
        self.said: list[Any] = []
        self.in_vain: list[FetchFailed] = []
        self.network = self.clock = self.store = self
        ports: Any = self
        self.keeping = Keeping(ports, count(1), self.said.append, self.in_vain.append)

    def ticks_s(self) -> float:
        return self.now_s

    def connect(self, address: str, channel: int, *_: Any) -> Line:
        assert channel == SHELF
        self.lines.append(Line(len(self.lines), address))
        return self.lines[-1]

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments))

    def hold(self, *refs: LayerRef, sources: tuple[str, ...] = ("a", "b"), n: int = 0) -> None:
        """... and none of what is not known is here."""
        self.asked.clear()
        self.keeping.hold(Hold(0, Incarnation(1, n), refs, sources))
        for name, ticket, _ in [asked for asked in self.asked if asked[0] == "look"]:
            assert name == "look"
            self.keeping.looked(Looked(ticket, ()))
        self.tick()

    def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        self.keeping.tick()

    def says(self, *messages: Any) -> None:
        for message in messages:
            assert self.keeping.heard(self.lines[-1].conn_id, message)

    def kept(self, error: Exception | None = None) -> bytes:
        """The last thing that it wants to keep is kept; return that."""
        name, ticket, _, content = self.asked[-1]
        assert name == "keep"
        self.keeping.kept(Kept(ticket, error))
        self.tick()
        return bytes(content)


@pytest.fixture
def world() -> World:
    return World()


def test_a_layer_comes_part_by_part(world):
    one = ref(1)
    world.hold(one)
    assert [line.address for line in world.lines] == ["a"]
    assert world.lines[0].said == [], "not before the other side is there"
    world.says(LayersHere(), LayerPart(one.path, 0, 10, b"abcd"))
    assert world.lines[0].said == [LayerWanted(one, 0), LayerWanted(one, 4)]
    world.says(LayerPart(one.path, 4, 10, b"efghij"))
    assert world.lines[0].is_closed
    assert world.said == []
    assert world.kept() == b"abcdefghij"
    assert world.said == [Held(0, (one,))]
    assert world.keeping.wait_s is None


def test_what_is_here_already_is_told_and_not_fetched(world):
    world.keeping.hold(Hold(0, LIFE, (ref(1), ref(2)), ("a",)))
    ((_, ticket, _),) = world.asked
    world.keeping.looked(Looked(ticket, (ref(1).path,)))
    world.tick()
    assert world.said == [Held(0, (ref(1),))]
    assert len(world.lines) == 1


@pytest.mark.parametrize("how", ["silent", "gone", "empty", "wrong", "another"])
def test_a_source_that_does_not_have_it_is_left_for_the_next(world, how):
    one = ref(1)
    world.hold(one)
    if how == "silent":
        world.tick(ANSWER_S)
    elif how == "gone":
        world.keeping.closed(ChannelClosed(SHELF, 0, "sender"))
    elif how == "empty":
        world.says(LayersHere(), LayerPart(one.path, 0, -1, b""))
    elif how == "another":
        world.says(LayersHere(), LayerPart(ref(2).path, 0, 4, b"abcd"))
    else:
        world.says(LayersHere(), LayerPart(one.path, 0, 2, b"xx"))
        world.kept(ValueError("it is another one"))
    world.tick()
    assert [line.address for line in world.lines] == ["a", "b"]
    assert world.said == []
    world.says(LayersHere(), LayerPart(one.path, 0, 2, b"ab"))
    assert world.kept() == b"ab"
    assert world.said == [Held(0, (one,))]


def test_behind_the_last_source_comes_the_first_again_a_little_later(world):
    world.hold(ref(1))
    for conn in 0, 1:
        world.keeping.closed(ChannelClosed(SHELF, conn, "sender"))
        world.tick()
    assert len(world.lines) == 2
    assert world.keeping.wait_s == pytest.approx(AGAIN_S)
    world.tick(AGAIN_S)
    assert [line.address for line in world.lines] == ["a", "b", "a"]


def test_what_is_wanted_no_more_is_not_fetched_on(world):
    world.hold(ref(1))
    world.hold(ref(2))
    assert world.lines[0].is_closed
    world.keeping.heard(0, LayerPart(ref(1).path, 0, 2, b"ab"))
    assert not any(asked[0] == "keep" for asked in world.asked)


def test_who_asks_is_given_what_is_here(world):
    guest = Line(77)
    world.keeping.opened(ChannelOpened(SHELF, 77, LIFE, LIFE, guest))
    assert guest.said == [LayersHere()]
    assert world.keeping.heard(77, LayerWanted(ref(1), 4))
    (_, ticket, wanted, start) = world.asked[-1]
    assert (wanted, start) == (ref(1), 4)
    part = LayerPart(ref(1).path, 4, 6, b"ef")
    world.keeping.read(PartRead(ticket, part))
    assert guest.said[1:] == [part]


def test_a_task_is_restored_when_all_its_layers_are_here_whatever_its_copy_has(world):
    one, two = ref(1), ref(2)
    world.hold(one, two)
    world.keeping.fetch(40, [one, two], [two])
    for layer, line in zip((one, two), world.lines, strict=True):
        assert ("fetch", 40, [two]) not in world.asked
        world.keeping.heard(line.conn_id, LayersHere())
        world.keeping.heard(line.conn_id, LayerPart(layer.path, 0, 2, b"ab"))
        world.kept()
    assert ("fetch", 40, [two]) in world.asked


def test_who_waits_for_what_does_not_count_any_more_is_told(world):
    world.hold(ref(1))
    world.keeping.fetch(40, [ref(1)], [ref(1)])
    assert not world.in_vain
    world.hold(ref(2))
    assert [event.ticket for event in world.in_vain] == [40]


def test_what_earlier_lives_have_sealed_here_goes_unless_it_counts(world):
    old, passed, new = ref(1), ref(2), ref(3, Incarnation(1, 1))
    for layer in old, passed, new:
        world.keeping.stored(layer, is_over=False)
    world.hold(passed, n=1)
    assert [asked for asked in world.asked if asked[0] == "drop"] == [("drop", [old])]


def test_a_layer_of_a_life_that_is_over_is_not_kept(world):
    world.keeping.stored(ref(1), is_over=True)
    assert world.asked == [("drop", [ref(1)])]


def test_what_is_discarded_is_no_more_here(world):
    world.keeping.stored(ref(1), is_over=False)
    world.keeping.discard(Discard(0, LIFE, (ref(1),)))
    assert world.asked == [("drop", (ref(1),))]
    world.hold(ref(1))
    assert len(world.lines) == 1, "it is fetched again"


def test_a_layer_of_an_earlier_life_stays_that_counts_whatever_else_is_discarded(world):
    floor, passed = ref(1), ref(2)
    for layer in floor, passed:
        world.keeping.stored(layer, is_over=False)
    world.hold(floor, passed, n=1)
    world.keeping.discard(Discard(0, Incarnation(1, 1), (passed,)))
    assert [asked for asked in world.asked if asked[0] == "drop"] == [("drop", (passed,))]


def looked(world: World, *found: LayerRef) -> tuple[LayerRef, ...]:
    """It looks; return at what."""
    name, ticket, refs = world.asked[-1]
    assert name == "look"
    world.keeping.looked(Looked(ticket, tuple(ref.path for ref in found)))
    world.tick()
    return tuple(refs)


def test_what_cannot_be_read_here_comes_from_others(world):
    one, two = ref(1), ref(2)
    for layer in one, two:
        world.keeping.stored(layer, is_over=False)
    world.keeping.hold(Hold(0, LIFE, (one, two), ("a",)))
    world.keeping.fetch(40, [one, two], [one, two])
    assert world.asked == [("fetch", 40, [one, two])]
    assert world.keeping.fetch_failed(FetchFailed(40, UnreadableLayer("a bit is another one")))
    assert looked(world, one) == (one, two)
    assert world.said == [Lacks(0, (two.path,)), Held(0, (one,))]
    world.says(LayersHere(), LayerPart(two.path, 0, 2, b"ab"))
    world.kept()
    assert world.said[2:] == [Held(0, (two,))]
    assert world.asked[-1] == ("fetch", 40, [one, two])
    world.keeping.fetched(40)
    assert not world.in_vain


def test_what_fails_for_another_reason_is_not_tried_again(world):
    one = ref(1)
    world.keeping.stored(one, is_over=False)
    world.keeping.hold(Hold(0, LIFE, (one,), ("a",)))
    world.keeping.fetch(40, [one], [one])
    assert not world.keeping.fetch_failed(FetchFailed(40, ValueError("no program")))
    world.keeping.fetch(41, [one], [one])
    event = FetchFailed(41, UnreadableLayer("of the checkpoint store"))
    assert world.keeping.fetch_failed(event)
    looked(world, one)
    assert world.in_vain == [event]
    assert not world.keeping.fetch_failed(event), "the node hears it again"


@pytest.mark.parametrize("how", ["asked", "merged"])
def test_who_finds_that_something_is_not_here_any_more_says_so(world, how):
    one = ref(1)
    world.keeping.stored(one, is_over=False)
    world.keeping.hold(Hold(0, LIFE, (one,), ("a",)))
    if how == "asked":
        world.keeping.opened(ChannelOpened(SHELF, 77, LIFE, LIFE, Line(77)))
        world.keeping.heard(77, LayerWanted(one, 0))
        world.keeping.read(PartRead(world.asked[-1][1], LayerPart(one.path, 0, -1, b"")))
    else:
        world.keeping.merge(MergeLayers(0, (one,), True, MEMORY, "0/merged"))
        world.keeping.merged(MergedHere(world.asked[-1][1], None))
    looked(world)
    assert Lacks(0, (one.path,)) in world.said
    assert [line.address for line in world.lines] == ["a"]


def test_who_is_asked_for_what_its_disk_should_have_says_that_it_lacks_it(world):
    """A slot that has just come was told of nothing on its disk; others ask it all the same."""
    one = replace(ref(1), level=LOCAL)
    world.keeping.opened(ChannelOpened(SHELF, 77, LIFE, LIFE, Line(77)))
    world.keeping.heard(77, LayerWanted(one, 0))
    world.keeping.read(PartRead(world.asked[-1][1], LayerPart(one.path, 0, -1, b"")))
    assert looked(world) == (one,)
    assert world.said == [Lacks(0, (one.path,))]


def test_who_is_named_no_source_looks_at_its_own_disk_again(world):
    """Another slot has put the layer there meanwhile, and is gone."""
    layer = replace(ref(1), level=LOCAL)
    world.hold(layer)
    world.asked.clear()
    world.said.clear()
    world.keeping.hold(Hold(0, Incarnation(1, 0), (layer,), ()))
    ((_, ticket, _),) = world.asked
    world.keeping.looked(Looked(ticket, (layer.path,)))
    assert world.said == [Held(0, (layer,))]
    world.tick(2 * ANSWER_S)
    assert world.keeping.wait_s is None, "nothing is fetched"


def test_what_is_written_when_nobody_wants_it_any_more_goes(world):
    world.hold(ref(1))
    world.says(LayersHere(), LayerPart(ref(1).path, 0, 2, b"ab"))
    (_, ticket, _, _) = world.asked[-1]
    world.keeping.discard(Discard(0, LIFE, (ref(1),)))
    world.asked.clear()
    world.keeping.kept(Kept(ticket))
    assert world.asked == [("drop", [ref(1)])]


def test_a_copy_that_is_wanted_no_more_when_it_is_written_is_for_the_coordinator_to_delete(world):
    """Another slot may have it on the same disk."""
    layer = replace(ref(1), level=LOCAL)
    world.hold(layer)
    world.says(LayersHere(), LayerPart(layer.path, 0, 2, b"ab"))
    (_, ticket, _, _) = world.asked[-1]
    world.keeping.discard(Discard(0, LIFE, (layer,)))
    world.asked.clear()
    world.said.clear()
    world.keeping.kept(Kept(ticket))
    assert world.asked == []
    assert world.said == [Held(0, (layer,))]


@pytest.mark.parametrize("sources", [(), ("a",)])
def test_what_is_written_when_it_is_wanted_again_is_here(sources, world):
    """Whoever it came from may be dead, so nobody else has it."""
    layer = replace(ref(1), level=LOCAL)
    world.hold(layer)
    world.says(LayersHere(), LayerPart(layer.path, 0, 2, b"ab"))
    (_, ticket, _, _) = world.asked[-1]
    world.hold(sources=())
    world.hold(layer, sources=sources)
    world.said.clear()
    world.keeping.kept(Kept(ticket))
    assert world.said == [Held(0, (layer,))]
    world.tick(2 * ANSWER_S)
    assert world.keeping.wait_s is None, "nothing is fetched"
    assert all(line.is_closed for line in world.lines)


def test_what_counts_no_more_when_a_copy_asks_for_it_is_given_up(world):
    """It had to wait for its turn, and would wait for ever now."""
    world.hold(ref(1))
    world.hold(sources=())
    world.keeping.fetch(7, (ref(1),), (ref(1),))
    assert [event.ticket for event in world.in_vain] == [7]


def test_what_a_life_has_sealed_goes_if_it_is_stored_after_its_end(world):
    """It is never reported, so nobody would ask to delete it."""
    world.hold(n=1)
    world.keeping.stored(ref(1), is_over=False)
    assert world.asked == [("drop", [ref(1)])]
    world.keeping.stored(ref(2, Incarnation(1, 1)), is_over=False)
    assert len(world.asked) == 1


def test_nobody_is_asked_as_long_as_nobody_is_named(world):
    world.hold(ref(1), sources=())
    assert world.keeping.wait_s is None
    world.tick(3600.0)
    world.hold(ref(1), sources=("a",))
    assert [line.address for line in world.lines] == ["a"]


def test_what_a_disk_should_have_and_has_not_is_told(world):
    one = replace(ref(1), level=LOCAL)
    world.hold(one)
    assert world.said == [Lacks(0, (one.path,))]


def test_who_is_asked_what_is_here_looks_again(world):
    one = ref(1)
    world.keeping.stored(one, is_over=False)
    hold = Hold(0, LIFE, (one,), ("a",))
    world.keeping.hold(hold)
    world.keeping.hold(hold)
    assert not world.asked, "the same twice means no more than once"
    world.keeping.hold(replace(hold, asks=True))
    assert looked(world, one) == (one,)
    assert world.said == [Held(0, (one,))]
