"""What a driver keeps of a job's past, and when it lets it go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clonos.core import messages as msg
from clonos.core.determinants import Source, encode_record
from clonos.core.history import (
    Chains,
    History,
    Keep,
    Segment,
    decode_segment,
    litter,
    pin_path,
    segment_path,
)
from clonos.core.layer import layer_path
from clonos.core.levels import LayerRef
from clonos.errors import ClonosError
from clonos.nodes import events
from clonos.nodes.commits import ROTATE_BYTES
from clonos.nodes.history import AGAIN_S
from clonos.nodes.layers import GARBAGE_S
from tests.link import Link
from tests.nodes.world import World


class KeepingWorld(World):
    """A job that keeps its past; its clock is the wall's, too."""

    def __init__(self, records: Sequence[bytes] = (), keep: Keep | None = None) -> None:
        super().__init__(records, keep or Keep(ms=25_000, every_ms=10_000))
        self.steps = 0

    def floor(self, layers: Chains, kept: Chains) -> None:
        self.kept = kept

    def next_floor(self, link: Link) -> str:
        """The task has done two more steps, and is sealed there; the house-keeper has its log."""
        life = self.node.coordinator.tasks[0].incarnation
        records = (encode_record([Source(1, 0, None)]),) * 2
        self.keeper.append([msg.Run(0, life, self.steps + 1, records)])
        self.turn()
        self.steps += 2
        epoch = self.epoch(link)
        path = layer_path(0, epoch, life)
        ref = LayerRef(0, epoch, life, self.steps, path, 100, 0)
        self.turn((1, msg.LayerAck(0, life, ref, {}, {}, {})), after_s=0.1)
        self.turn(after_s=1.0)
        return path

    @property
    def points(self) -> list[int]:
        return [point.number for point in self.keeper.history.points]

    def stored(self) -> None:
        """All segments are in the store."""
        for number, path, content in self.archived:
            self.turn(events.Archived(number, path, len(content)))


@pytest.fixture
def keeping() -> KeepingWorld:
    return KeepingWorld()


def test_what_failed_attempts_to_store_a_segment_have_left_is_litter():
    history = History(Keep(ms=1, every_ms=1))
    left, other = "history/.000000000002-1.log.0a1b.tmp", "history/.000000000003-1.log.0a1b.tmp"
    history.segments[2] = Segment(segment_path(2, 1), 10)
    assert litter([left, other, segment_path(2, 1)], history, 1, 0.0) == [left]


def test_a_floor_becomes_a_point_now_and_then_and_the_log_between_is_kept(keeping):
    link = keeping.begin()
    assert keeping.points == [1], "the beginning"
    keeping.next_floor(link)
    assert keeping.points == [1]
    keeping.now_s += 10
    keeping.next_floor(link)
    assert keeping.points == [1, 2]
    ((number, path, content),) = keeping.archived
    assert (number, path) == (1, "history/000000000001-1.log")
    runs = decode_segment(content)
    assert [(run.start, len(run.records)) for run in runs] == [(1, 2), (3, 2)]
    assert keeping.kept == {0: ()}, "sources keep what the oldest point needs"


def test_a_floor_waits_for_the_log_below_it(keeping):
    link = keeping.begin()
    life = keeping.node.coordinator.tasks[0].incarnation
    ref = LayerRef(0, keeping.epoch(link), life, 1, "path", 1, 0)
    keeping.turn((1, msg.LayerAck(0, life, ref, {}, {}, {})))
    keeping.turn(after_s=5.0)
    assert "floor" not in keeping.notes
    record = encode_record([Source(1, 0, None)])
    keeping.keeper.append([msg.Run(0, life, 1, (record,))])
    keeping.turn(after_s=1.0)
    keeping.turn(after_s=1.0)
    assert "floor" in keeping.notes


def test_what_is_kept_survives_the_driver(keeping):
    link = keeping.begin()
    for _ in range(3):
        keeping.next_floor(link)
        keeping.now_s += 10
    assert keeping.points == [1, 2, 3]
    number, path, content = keeping.archived[0]
    keeping.turn(events.Archived(number, path, len(content)))
    known = keeping.keeper.history
    for records in (keeping.records, keeping.keeper.snapshot()):
        again = KeepingWorld(records)
        history = again.keeper.history
        assert (history.points, history.segments) == (known.points, known.segments)
        assert (history.closed, history.open) == (known.closed, known.open)
        again.node.start()
        again.turn(after_s=0.1)
        assert again.archived[0][:2] == (2, "history/000000000002-2.log"), "in its own term"


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_job_that_goes_on_where_it_had_settled_begins_at_a_point(keeping, is_settled):
    """It may have other functions: nobody can repeat with these what was before."""
    link = keeping.begin()
    keeping.next_floor(link)
    if not is_settled:
        record = encode_record([Source(1, 0, None)])
        life = keeping.node.coordinator.tasks[0].incarnation
        keeping.keeper.append([msg.Run(0, life, keeping.steps + 1, (record,))])
        keeping.turn()
    assert keeping.points == [1]
    again = KeepingWorld(keeping.keeper.snapshot())
    again.now_s = keeping.now_s
    again.node.start()
    assert again.points == ([1, 2] if is_settled else [1])
    if is_settled:
        assert again.keeper.history.points[-1].positions == {0: 2}
        third = KeepingWorld(again.keeper.snapshot())
        third.now_s = keeping.now_s
        third.node.start()
        assert third.points == [1, 2], "there is one already"


def test_a_store_that_refuses_is_asked_again_later(keeping):
    link = keeping.begin()
    keeping.now_s += 10
    keeping.next_floor(link)
    for _ in range(2):
        keeping.turn(events.ArchiveFailed(1, ClonosError("no room")))
    assert len([text for text in keeping.warnings if "no room" in text]) == 1
    keeping.turn(after_s=1.0)
    assert len(keeping.archived) == 1
    for _ in range(int(AGAIN_S)):
        keeping.turn(after_s=1.0)
    assert len(keeping.archived) == 2


def old_points(world: KeepingWorld) -> list[str]:
    """Layers of a job that has run for a minute."""
    link = world.begin()
    layers = []
    for _ in range(6):
        layers.append(world.next_floor(link))
        world.now_s += 10
    world.stored()
    return layers


def test_points_that_are_too_old_go_with_what_only_they_need(keeping):
    old_points(keeping)
    assert keeping.points == [1, 2, 3, 4, 5, 6]
    begin_ms = 1000 * (keeping.now_s - 25)
    points = keeping.keeper.history.points
    assert keeping.going == max(p.number for p in points if p.at_ms <= begin_ms) - 1 > 0
    refs = keeping.keeper.layers[0]
    new = LayerRef(0, refs[1].epoch, refs[1].incarnation, refs[1].position, "merged", 150, 0)
    keeping.turn(events.Merged(new, refs[:2]))
    keeping.may_delete = True
    for _ in range(int(GARBAGE_S) + 3):
        keeping.turn(after_s=1.0)
    assert keeping.deleted == [], "points need what was merged"
    keeping.turn(events.Surveyed((), keeping.going))
    assert keeping.points[0] == keeping.going + 1
    for _ in range(int(GARBAGE_S) + 3):
        keeping.turn(after_s=1.0)
    segments = [f"history/{n:012d}-1.log" for n in range(1, keeping.points[0])]
    assert set(segments) <= set(keeping.deleted)
    assert not set(keeping.deleted) & keeping.keeper.history.paths


def test_a_point_that_somebody_reads_stays(keeping):
    old_points(keeping)
    keeping.may_delete = True
    pins = (pin_path(2, int(keeping.now_s) + 100, "a"), pin_path(1, int(keeping.now_s) - 1, "b"))
    keeping.turn(events.Surveyed(pins, keeping.going))
    assert keeping.points[0] == 2
    surveys = keeping.surveys
    for _ in range(int(AGAIN_S) + 2):
        keeping.turn(after_s=1.0)
    assert keeping.surveys > surveys, "it is asked again"
    keeping.turn(events.Surveyed((), 1), events.Surveyed(pins, keeping.going))
    assert keeping.points[0] == 2
    keeping.turn(events.Surveyed((), keeping.going))
    assert keeping.points[0] == keeping.going + 1 > 2
    assert any(name == pins[1] for name in keeping.deleted), "a pin that is over is litter"


def test_what_is_kept_is_limited_in_bytes():
    keeping = KeepingWorld(keep=Keep(ms=1 << 40, nbytes=150, every_ms=10_000))
    link = keeping.begin()
    for _ in range(4):
        keeping.next_floor(link)
        keeping.now_s += 10
    keeping.turn(*(events.Archived(n, path, 60) for n, path, _ in keeping.archived))
    keeping.turn(after_s=1.0)
    assert keeping.going == 1, "of three segments, two are within the limit"


def test_a_job_that_keeps_nothing_any_more_lets_it_all_go(keeping):
    old_points(keeping)
    again = World(keeping.keeper.snapshot())
    again.begin()
    again.turn(after_s=1.0)
    assert again.going == 6
    again.may_delete = True
    again.turn(events.Surveyed((), 6))
    assert not again.keeper.history.points
    assert [*again.keeper.history.snapshot()] == [("gone", 6), ("going", 6)]
    for _ in range(int(GARBAGE_S) + 3):
        again.turn(after_s=1.0)
    assert {f"history/{n:012d}-1.log" for n in (1, 2, 3, 4, 5)} <= set(again.deleted)
    assert not set(again.deleted) & {ref.path for ref in again.keeper.layers[0]}


def test_a_long_head_is_not_written_again_at_each_floor(keeping, monkeypatch):
    """Points are in each snapshot: many of them may take more than a journal at its rotation."""
    link = keeping.begin()
    head = [bytes(ROTATE_BYTES)]
    monkeypatch.setattr(keeping.keeper, "snapshot", lambda unsettled=(): head)
    keeping.nbytes = ROTATE_BYTES
    for rotations in (1, 1):
        keeping.next_floor(link)
        assert keeping.rotations == rotations
    keeping.nbytes = 2 * ROTATE_BYTES
    keeping.next_floor(link)
    assert keeping.rotations == 2
