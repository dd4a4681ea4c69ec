"""One life of a driver, event by event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core.blame import Suspicion
from clonos.core.determinants import Source, Timer, encode_record
from clonos.core.digest import chain, content_digest
from clonos.core.layer import layer_path, merged_path
from clonos.core.levels import LayerRef
from clonos.core.mandate import MandateAsked, MandateGiven
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.errors import ClonosError, OperatorError, SinkFailed, TaskFailed
from clonos.nodes import events
from clonos.nodes.driver import CLOSE_S, LEAVE_S, RATES_S, STOP_S
from clonos.nodes.layers import GARBAGE_S, SURVEY_GRACES
from clonos.nodes.phases import Phase
from clonos.nodes.pulses import CALM_S, HUSH
from clonos.nodes.tenure import Sight, TermSeen
from clonos.nodes.views import JobProgress, JobStarted, JobTerminated, Spent
from clonos.nodes.waiting import PAUSE_MAX_S
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    Heartbeat,
    TaskStatistics,
)
from tests.link import Link
from tests.nodes.world import SILENCE_S, SparkIsGone, World, injected


@pytest.fixture
def world() -> World:
    return World()


def test_a_job_begins(world):
    assert world.node.view.status.message == "tasks: 1 waiting for a slot"
    link = world.begin()
    assert [place for place, _ in world.launched] == [0, 1]
    assert isinstance(world.heard[0], JobStarted)
    assert injected(link)
    world.turn(after_s=RATES_S)
    view = world.node.view
    assert view.tasks[0].phase == "live"
    assert view.slots[0].runs == ("lines[0]",)
    assert isinstance(view.recent[-1], JobProgress)


def test_epochs_begin_after_their_interval_and_not_before_the_last_is_complete(world):
    link = world.begin()
    first = world.epoch(link)
    assert world.turn(after_s=2.0) > 0
    assert world.epoch(link) == first, "its layer is not there"
    ref = LayerRef(0, first, Incarnation(1, 0), 0, "path", 1, 0)
    world.turn((1, msg.LayerAck(0, Incarnation(1, 0), ref, {}, {}, {})))
    assert "floor" in world.notes
    assert world.epoch(link) == first + 1


def test_what_nobody_will_read_goes_when_its_grace_is_over(world):
    """Layers of earlier drivers, and of this one that came too late for a floor."""
    world.keeper.begin_term(1)
    again = World([*world.keeper.take_records()])
    link = again.begin()
    life = Incarnation(2, 0)

    def floor() -> str:
        epoch = again.epoch(link)
        path = layer_path(0, epoch, life)
        ref = LayerRef(0, epoch, life, epoch, path, 1, 0)
        again.turn((1, msg.LayerAck(0, life, ref, {}, {}, {})))
        return path

    old, next_one = layer_path(0, 1, Incarnation(1, 3)), layer_path(0, 90, life)
    late = layer_path(0, 1, Incarnation(2, 7))
    half = "0/.000000000001-1-3.layer.0abc.tmp"
    first = floor()
    assert again.surveys == 1
    for _ in range(2):  # whoever is named twice goes once
        again.turn(events.Surveyed((old, half, late, next_one, first, floor(), "somebody's")))
    for second in range(int(GARBAGE_S) + 2):
        again.may_delete = second + 1 > GARBAGE_S
        again.turn((1, Heartbeat("nonce", 0)), after_s=1.0)
        floor()
    assert again.deleted == [old, half, late]
    assert again.surveys == 1
    for _ in range(int((SURVEY_GRACES - 1) * GARBAGE_S)):
        again.turn((1, Heartbeat("nonce", 0)), after_s=1.0)
    floor()
    assert again.surveys == 2, "now and then"


def test_no_layer_goes_before_it_is_durable_that_it_counts_no_more(world):
    """A survey has taken a merged layer for litter, and its grace is over as soon as it is merged
    itself."""
    link, life = world.begin(), Incarnation(1, 0)
    world.may_delete = True

    def layer(epoch: int, path: str = "") -> LayerRef:
        return LayerRef(0, epoch, life, epoch, path or layer_path(0, epoch, life), 1, 0)

    def seal(epoch: int) -> LayerRef:
        assert world.epoch(link) == epoch
        world.turn((1, msg.LayerAck(0, life, layer(epoch), {}, {}, {})))
        world.turn((1, Heartbeat("nonce", 0)), after_s=1.0)
        return layer(epoch)

    def merge(*refs: LayerRef) -> LayerRef:
        merged = layer(refs[-1].epoch, merged_path(refs, 1))
        world.turn(events.Merged(merged, refs))
        return merged

    both = (seal(1), seal(2))
    world.turn(events.Surveyed((merged_path(both, 1),)))
    first = merge(*both)
    third = seal(3)
    world.passes(GARBAGE_S - 3.0, 1)
    world.is_broken = True
    merge(first, third)
    world.turn(events.JournalFailed(ClonosError("no space")))
    for _ in range(int(GARBAGE_S)):
        world.turn((1, Heartbeat("nonce", 0)), after_s=0.5)
        world.turn(events.JournalFailed(ClonosError("no space")), after_s=0.5)
    referred = {ref.path for ref in World(world.records).keeper.layers[0]}
    assert referred == {first.path, third.path}
    assert referred.isdisjoint(world.deleted)
    world.is_broken = False
    world.turn(events.JournalFailed(ClonosError("no space")))
    world.passes(GARBAGE_S + 3.0, 1)
    assert referred <= set(world.deleted)


def test_nobody_hears_of_what_is_not_durable(world):
    link = world.begin()
    first = world.epoch(link)
    ref = LayerRef(0, first, Incarnation(1, 0), 0, "path", 1, 0)
    world.is_slow = True
    world.turn((1, msg.LayerAck(0, Incarnation(1, 0), ref, {}, {}, {})))
    world.turn(after_s=2.0)
    assert "floor" not in world.notes
    assert world.epoch(link) == first
    world.is_slow = False
    world.turn(events.Committed())
    assert "floor" in world.notes
    assert world.epoch(link) == first + 1


def test_a_disk_that_refuses_does_not_end_the_job(world):
    link = world.begin()
    first = world.epoch(link)
    ref = LayerRef(0, first, Incarnation(1, 0), 0, "path", 1, 0)
    world.is_broken = True
    world.turn((1, msg.LayerAck(0, Incarnation(1, 0), ref, {}, {}, {})))  # a floor: to be written
    assert "floor" not in world.notes
    world.turn(events.JournalFailed(ClonosError("no space")))
    for _ in range(3):
        world.turn(after_s=1.0)
        world.turn(events.JournalFailed(ClonosError("no space")))
    assert world.warnings == ["no space; until it can be, the job waits"]
    assert world.node.error is None
    assert "floor" not in world.notes
    tried, world.is_broken = world.rotations, False
    world.turn(events.JournalFailed(ClonosError("no space")), after_s=0.5)
    assert world.rotations == tried, "not all the time"
    world.turn(after_s=0.5)
    assert world.rotations == tried + 1
    assert "floor" in world.notes
    assert World(world.records).keeper.epoch == first


def test_a_silent_slot_is_given_up(world):
    link = world.begin()
    spare = world.registers(1, 2)
    world.passes(SILENCE_S - 0.1, 2)
    assert not link.is_closed
    world.passes(0.3, 2)
    assert link.is_closed
    assert not spare.is_closed
    assert "detected" in world.notes
    assert [c.task for c in spare.sent if isinstance(c, msg.Activate)] == [0]
    before = len(spare.sent)
    world.turn((1, msg.Live(0, Incarnation(1, 0), 0)))  # it wakes
    assert len(spare.sent) == before


def test_a_silent_slot_that_a_recovery_awaits_is_given_up_sooner(world):
    link, spare = world.begin(), world.registers(1, 2)
    world.node.coordinator.recoveries.asked = lambda: {1}
    world.passes(HUSH * SILENCE_S - 0.1, 2)
    assert not link.is_closed
    world.passes(0.3, 2)
    assert link.is_closed
    assert not spare.is_closed


@pytest.mark.parametrize("is_calm", [False, True])
def test_a_task_that_was_given_up_twice_has_four_times_the_time_unless_it_has_lived_calmly(
    world, is_calm
):
    world.begin()
    for slot in (2, 3):
        link = world.registers(3 - slot, slot)
        world.passes(2 * SILENCE_S + 0.2, slot)  # the slot before says nothing
        life = [c for c in link.sent if isinstance(c, msg.Activate)][-1].incarnation
        world.turn((slot, msg.Restored(0, life)), (slot, msg.Live(0, life, 0)))
    world.passes(CALM_S + 1.0 if is_calm else 0.1, slot)
    world.passes(2 * SILENCE_S + 0.3)
    assert link.is_closed == is_calm
    world.passes(2 * SILENCE_S)
    assert link.is_closed


def test_a_drivers_sleep_is_no_silence_of_the_slots(world):
    link = world.begin()
    world.turn(after_s=3600.0)
    assert not link.is_closed
    world.passes(SILENCE_S - 0.3)
    assert not link.is_closed
    world.passes(0.5)
    assert link.is_closed


def test_code_that_does_not_come_back_is_named(world):
    world.begin()
    busy = Heartbeat("nonce", 0, 31_000, "ask[0]", '  File "fraud.py", line 7, in ask')
    world.turn((1, busy))
    world.turn((1, busy))
    (warning,) = world.warnings
    assert warning.startswith("ask[0] has been in one step for 31 s (process ")
    assert 'File "fraud.py", line 7, in ask' in warning
    world.turn((1, Heartbeat("nonce", 1)))
    world.turn((1, busy))
    assert len(world.warnings) == 2, "another step"


def test_a_stop_sends_the_slots_home_and_puts_the_journal_in_order(world):
    link = world.begin()
    world.turn(events.StopAsked())
    assert link.sent[-1] == msg.Stop()
    assert world.node.phase is Phase.LEAVING
    last = TaskStatistics(0, 0, {"lines: rows_in": 7, "out: rows_out": 7})
    world.turn((1, last), ControlLost(0, 1))
    world.turn()
    for place, attempt in world.launched:
        world.turn(events.Ended(place, attempt))
    world.turn()
    world.turn()
    assert world.node.is_over
    assert world.node.error is None
    assert world.rotations == 1
    assert len(world.launched) == 2
    world.node.tell_the_end(None)
    assert world.heard[-2].tasks[0].rows_in == 7
    assert world.heard[-1] == JobTerminated("etl", "etl-1", is_complete=False, error=None)
    assert world.node.view.status.message == "ended"


@pytest.mark.parametrize(("settle_s", "grace_s"), [(None, STOP_S), (0.0, CLOSE_S)])
def test_a_disk_that_fails_does_not_hold_up_the_end_for_long(world, settle_s, grace_s):
    """Least if somebody stops the job: the next start begins with what the disk has."""
    world.begin()
    world.in_the_way = ClonosError("no space")
    world.turn(events.StopAsked(settle_s))
    world.turn()
    world.turn(ControlLost(0, 1))
    for place, attempt in world.launched:
        world.turn(events.Ended(place, attempt))
    world.turn()
    assert world.node.phase is Phase.CLOSING
    world.passes(grace_s - 1)
    assert not world.node.is_over
    world.passes(2)
    assert world.node.is_over
    assert world.node.error is world.in_the_way


def throttled(link: Link) -> bool:
    """Whether the source was told to wait."""
    commands = [told.command for told in link.sent if isinstance(told, msg.ToTask)]
    return msg.Throttle(closed=True) in commands


def test_a_driver_that_will_end_soon_begins_to_put_outputs_into_files(world):
    world.begin()
    world.turn(events.EndIsNear())
    assert world.begun == 1
    assert world.node.phase is Phase.RUNNING


def test_a_job_settles_before_it_ends(world):
    link = world.begin()
    world.turn(events.StopAsked(settle_s=60.0))
    assert throttled(link)
    under_way = world.epoch(link)
    world.epoch_is_complete()
    assert msg.Stop() not in link.sent, "its marker may have come before the last rows"
    assert world.epoch(link) == under_way + 1, "the next one does not wait for its time"
    world.epoch_is_complete()
    world.turn()
    assert world.node.phase is Phase.LEAVING
    assert world.keeper.is_settled


def test_a_job_does_not_settle_while_its_log_goes_on(world):
    link = world.begin()
    world.turn(events.StopAsked(settle_s=60.0))
    world.epoch_is_complete()
    record = encode_record([Timer(now_ms=0)])
    life = world.node.coordinator.tasks[0].incarnation
    world.keeper.append([msg.Run(0, life, 1, (record,))])
    world.epoch_is_complete()  # of a layer at position 0
    assert not world.keeper.is_settled
    for _ in range(59):
        world.turn((1, Heartbeat("nonce", 0)), after_s=1.0)
        assert world.node.phase is Phase.RUNNING
    world.turn((1, Heartbeat("nonce", 0)), after_s=1.0)
    assert world.node.phase is Phase.LEAVING
    assert throttled(link)


def test_who_does_not_want_to_wait_any_more_does_not(world):
    world.begin()
    world.turn(events.StopAsked(settle_s=60.0))
    world.turn(events.StopAsked())
    assert world.node.phase is Phase.LEAVING


def test_slots_that_do_not_leave_are_cancelled(world):
    world.begin()
    world.turn(events.StopAsked())
    for _ in range(int(2 * LEAVE_S / PAUSE_MAX_S) + 1):
        world.turn(after_s=PAUSE_MAX_S)
    assert len(world.cancelled) == 2
    for _ in range(int(LEAVE_S / PAUSE_MAX_S) + 2):
        world.turn(after_s=PAUSE_MAX_S)
    assert world.node.is_over


@pytest.mark.parametrize("is_to_blame", [True, False])
def test_what_a_job_has_not_come_to_terms_with_stays_in_its_journal(world, is_to_blame):
    world.begin()
    kind = OperatorError if is_to_blame else SparkIsGone
    world.turn(events.OutsideFailed(kind("gone")))
    world.turn(ControlLost(0, 1))
    for place, attempt in world.launched:
        world.turn(events.Ended(place, attempt))
    for _ in range(4):
        world.turn()
    assert world.node.is_over
    assert isinstance(world.node.error, kind)
    assert world.rotations == (not is_to_blame)


@pytest.mark.parametrize("is_broken", [True, False])
def test_output_that_can_never_be_put_into_files_ends_the_job(world, is_broken):
    world.begin()
    world.in_the_way = SinkFailed("a file with other content")
    world.is_broken = is_broken
    if is_broken:
        world.epoch_is_complete()
        world.turn(events.JournalFailed(ClonosError("no space")))
    else:
        world.turn(events.StopAsked())
    world.turn(events.OutsideFailed(world.in_the_way))
    world.turn(ControlLost(0, 1))
    for place, attempt in world.launched:
        world.turn(events.Ended(place, attempt))
    for _ in range(3):
        world.turn()
    assert world.node.is_over, "it does not wait"
    assert world.node.error is world.in_the_way


def test_what_a_task_cannot_go_on_with_is_told_with_its_kind(world):
    world.begin()
    life = Incarnation(1, 0)
    told = "lines[0]", "mend it", "Traceback of your code"
    world.turn((1, msg.TaskError(0, life, "OperatorError", "no", 1, *told)))
    assert isinstance(world.node.error, OperatorError)
    assert (world.node.error.what, world.node.error.where) == ("no", "lines[0]")
    assert world.node.error.trace == "Traceback of your code"
    assert world.node.error.remedy == "mend it"
    world = World()
    world.begin()
    world.turn((1, msg.TaskError(0, life, "KeyError", "who?", 1)))
    assert isinstance(world.node.error, TaskFailed)
    assert world.node.error.what == "KeyError: who?"


def test_a_merge_that_fails_is_worth_a_word_and_no_more(world):
    world.begin()
    ref = LayerRef(0, 1, Incarnation(1, 0), 0, "path", 1, 0)
    for _ in range(3):
        world.turn(events.MergeFailed((ref,), ClonosError("the store is away")))
    assert world.warnings == ["the store is away; layers of task 0 are merged later"]
    assert world.node.error is None


def test_the_bill_of_a_complete_job_outlives_its_driver(world):
    """Whenever that dies: the state in which calls were counted is gone."""
    link = world.begin()
    life = world.node.coordinator.tasks[0].incarnation
    counters = {"out: calls": 3, "out: micros": 500_000, "lines: bad_records": 2}
    world.turn((1, TaskStatistics(0, 0, counters)), (1, msg.Finished(0, life)))
    assert msg.Stop(is_complete=True) in link.sent
    again = World(world.records)  # it has died at once
    again.node.start()
    for _ in range(5):
        again.turn()
    assert again.node.view.is_complete
    assert again.node.view.bill == {"out": Spent(3, 0.5)}
    assert again.node.view.dropped == {"lines: bad_records": 2}
    world.turn((1, TaskStatistics(0, 0, {**counters, "out: calls": 4})))
    for records in (world.records, world.keeper.snapshot()):
        again = World(records)
        again.node.start()
        again.turn()
        assert again.node.view.bill == {"out": Spent(4, 0.5)}, "slots have told it when they left"


def test_a_complete_job_has_nothing_to_do(world):
    world.keeper.begin_term(1)
    world.keeper.finish()
    again = World(world.keeper.take_records())
    again.node.start()
    for _ in range(5):
        again.turn()
    assert again.node.is_over
    assert again.node.view.is_complete
    assert not again.launched


def test_a_channel_of_the_house_keeper_comes_and_goes(world):
    world.begin()
    life, link = Incarnation(1, 0), Link(50)
    world.turn(ChannelOpened(0, 50, life, life, link))
    hello, _ = link.sent  # and a credit
    assert isinstance(hello, msg.Hello)
    world.turn(ChannelClosed(0, 50, "receiver"))
    again = Link(51)
    world.turn(ChannelOpened(0, 51, life, life, again))
    assert again.sent[0] == hello


def test_views_do_not_change(world):
    before = world.node.view
    copied = repr(before)
    world.begin()
    world.turn(ControlLost(0, 1), after_s=1.0)
    world.turn(after_s=1.0)
    assert world.node.view is not before
    assert repr(before) == copied


def test_a_driver_that_slept_while_it_wrote_looks_before_it_lets_out(world):
    """Another one may have begun meanwhile, from a copy of the journal."""
    link = world.begin()
    first = world.epoch(link)
    sleeps_s = [3600.0]

    def append(records: Sequence[bytes]) -> bool:
        world.now_s += sleeps_s.pop() if sleeps_s else 0.0
        world.records += records
        return True

    world.append = append
    world.sight = None  # no answer yet
    world.epoch_is_complete()
    world.turn(after_s=1.0)
    assert not sleeps_s
    assert "floor" not in world.notes
    world.is_asked = False
    world.turn(TermSeen(Sight.OURS))
    assert "floor" in world.notes
    world.sight = Sight.OURS
    world.turn(after_s=2.0)
    assert world.epoch(link) == first + 1


def test_rows_delivered_by_the_driver_before_it_are_counted_on():
    """Those of sinks that the job has no more are not."""
    world, life = World(delivered={"out": 40, "gone": 7}), Incarnation(1, 0)
    assert world.node.view.delivered == {"out": 40}
    world.begin()
    world.turn(ChannelOpened(0, 50, life, life, Link(50)))
    batch = Batch(b"row", 3, 3, content_digest(b"row"))
    item = Item(1, Kind.BATCH, 0, 0, batch, {}, chain(0, Kind.BATCH, 0, batch.digest))
    world.turn((50, msg.Data(0, life, item, ())))
    world.turn(after_s=RATES_S)
    assert world.node.delivered == world.node.view.delivered == {"out": 43}


def output_withheld(world: World) -> Callable[[], list[int]]:
    """A driver has slept while an output was made durable, and may let nothing out. Returns which
    outputs are let out, or would be by its successor."""
    world.begin()
    life = Incarnation(1, 0)
    world.turn(ChannelOpened(0, 50, life, life, Link(50)))
    sleeps_s = [3600.0]

    def append(records: Sequence[bytes]) -> bool:
        world.now_s += sleeps_s.pop() if sleeps_s else 0.0
        world.records += records
        return True

    world.append = append  # type: ignore[method-assign]
    world.sight = None
    batch = Batch(b"row", 1, 3, content_digest(b"row"))
    link = chain(0, Kind.BATCH, 0, batch.digest)
    item = Item(1, Kind.BATCH, 0, 0, batch, {0: Dependency(life, 1)}, link)
    run = msg.Run(0, life, 1, (encode_record([Source(1, 2, None)]),), 0)
    world.turn((50, msg.Data(0, life, item, (run,))))
    assert not sleeps_s
    assert not world.outputs
    world.nbytes = 1 << 40  # the journal is to be begun anew
    world.is_asked = False

    def known() -> list[int]:
        found = list(world.outputs)
        if not found:
            again = World(world.records)
            again.node.start()
            found = again.outputs
        return [output.item.seq for output in found]

    assert known() == [1]
    return known


def test_a_driver_that_sleeps_again_keeps_what_it_has_not_let_out(world):
    known = output_withheld(world)

    def sleep(_: Any) -> None:
        world.now_s += 3600.0

    world.turn(TermSeen(Sight.OURS), events.RoundBegins(sleep))
    assert not world.outputs
    assert known() == [1]
    world.sight = Sight.OURS
    world.turn()
    assert [output.item.seq for output in world.outputs] == [1]


def test_a_driver_whose_term_is_over_leaves_its_journal_as_it_is(world):
    """The later term may be a file that cannot be read: then the next driver needs this journal."""
    known = output_withheld(world)
    world.turn(TermSeen(Sight.ANOTHERS))
    assert not world.outputs
    assert known() == [1]
    world.turn(events.OutsideFailed(SparkIsGone("gone")))
    world.turn(ControlLost(0, 1), ChannelClosed(0, 50, "receiver"))
    for place, attempt in world.launched:
        world.turn(events.Ended(place, attempt))
    for _ in range(4):
        world.turn()
    assert world.node.is_over
    assert not world.outputs
    assert known() == [1]


def test_who_asks_for_a_mandate_hears_how_long_ago_the_driver_was_sure(world):
    link = world.begin()
    world.sight = None  # no look has an outcome from now on
    ages_ms = []
    for _ in range(2):
        world.turn((1, Heartbeat("nonce", 0)), after_s=0.5)
        world.turn((1, MandateAsked(7)))
        (given,) = [told for told in link.sent if isinstance(told, MandateGiven)]
        link.sent.clear()
        ages_ms.append(given.age_ms)
    assert (ages_ms, given.asked_ms) == ([500, 1000], 7)


def test_if_the_folder_with_the_terms_is_away_a_quiet_journal_proves_that_its_lock_is_ours(world):
    world.begin()
    world.sight = None
    for _ in range(80):
        world.turn((1, Heartbeat("nonce", 0)), (1, MandateAsked(7)), after_s=0.1)
    link = world.node.places.seats[1].link
    ages_ms = [told.age_ms for told in link.sent if isinstance(told, MandateGiven)]
    assert max(ages_ms) < 4200
    assert 3 <= world.proofs <= 5, "one a second, from the fourth on"


def test_a_slot_whose_place_another_process_takes_has_died(world):
    """Spark has started its task again. That its stream ends is known later, or never."""
    first = world.begin()
    world.registers(0, 2)
    assert first.is_closed
    blame = {machine.of: machine.state for machine in world.node.coordinator.blame.machines()}
    assert list(blame.values()) == [Suspicion.WATCHED]
