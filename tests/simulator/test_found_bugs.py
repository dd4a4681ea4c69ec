"""What the simulator has found in the core, each as small as it gets."""

from __future__ import annotations

from typing import Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.channels import Inbound, Verdict
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Reported, SlotReady
from clonos.core.determinants import Order, Source, Timer, encode_record
from clonos.core.fences import Fences, Trust
from clonos.core.holder import Holder
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LayerRef
from clonos.core.log import LogBook
from clonos.core.messages import Dependency, Item, Kind, Run
from clonos.core.plan import Incarnation
from clonos.core.step import RunningStep, TaskTime
from clonos.core.task import TaskMachine
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.world.virtual import NoWorld, batch_of

OLD, NEW, NEWER = Incarnation(1, 0), Incarnation(1, 1), Incarnation(1, 2)
SOURCE = encode_record([Source(1, 0, None)])
PLAIN = Behaviour()
JOB = build_job(
    (
        Stage("source", 1, ()),
        Stage("middle", 1, (0,)),
        Stage("sink", 1, (1,), is_sink=True),
    ),
    sharing_depth=1,
    rows=5,
)


def machine(task, log=(), fences=()):
    activate = msg.Activate(task, OLD, (), log, fences, ())
    world = NoWorld(lambda content: batch_of(JOB.decode(content)))
    made = TaskMachine(JOB.plan, activate, JOB.program(task), (), world)
    made.start()
    return made


def item(seq, dep):
    batch = batch_of(((seq, seq),))
    return Item(seq, Kind.BATCH, 0, 0, batch, dep, 0)


def test_a_superseded_fence_does_not_refuse_what_the_newer_one_allows():
    holder = Holder()
    holder.append(Run(7, OLD, 1, (b"a",)))
    holder.fence(7, NEW, 0)
    holder.fence(7, NEWER, 0)
    holder.resolve(msg.Resolve(7, NEWER, 2, 0, reset=False))
    run = Run(7, OLD, 2, (b"b",))
    assert not holder.fences.forbids(run)
    holder.append(run)
    assert holder.book.length(7) == 2


def test_entries_of_a_new_life_wait_until_the_old_ones_are_cut():
    holder = Holder()
    holder.append(Run(0, OLD, 1, (b"a", b"lost")))
    holder.fence(0, NEW, 0)
    channel = Inbound(JOB.plan, JOB.plan.channels[0], 0, 0)
    channel.open(1)
    channel.hello(OLD, holder.book)
    data = msg.Data(0, NEW, None, (Run(0, NEW, 2, (b"new",)),))
    assert channel.take(data, holder) is Verdict.HELD
    holder.resolve(msg.Resolve(0, NEW, 1, 0, reset=False))
    assert channel.release_held(holder) is Verdict.TAKEN
    assert holder.book.record(0, 2) == b"new"


def test_what_is_held_but_not_yet_depended_on_waits_for_the_resolution():
    """Its log may be cut to less than we hold: then we would be an orphan nobody knows of."""
    task = machine(1)
    task.handle(ev.Opened(0, 1, OLD))
    run = Run(0, OLD, 1, (SOURCE, SOURCE))
    data = msg.Data(0, OLD, item(1, {0: Dependency(OLD, 2)}), (run,))
    task.handle(ev.Received(0, 1, data))
    (told,) = [a for a in task.handle(msg.Fence(0, NEW)) if isinstance(a, ev.Tell)]
    assert told.report == msg.FenceAnswer(1, 0, NEW, 2, None)
    assert task.step() is None


def test_no_hello_while_a_log_on_the_channel_is_being_cut():
    task = machine(1)
    task.handle(msg.Fence(0, NEW))
    assert not task.handle(ev.Opened(0, 1, NEW))
    actions = task.handle(msg.Resolve(0, NEW, 0))
    assert any(isinstance(a, ev.Reply) for a in actions)


def sent(actions) -> list[Any]:
    return [action.data for action in actions if isinstance(action, ev.Send)]


def keeper():
    made = HouseKeeper(JOB.plan, JOB.encode, JOB.decode)
    made.begin_term(1)
    return made


def acknowledged(house_keeper):
    actions, _ = house_keeper.committed()
    replies = [a.message for a in actions if isinstance(a, ev.Reply)]
    return {t: n for m in replies if isinstance(m, msg.Credit) for t, n in m.stable.items()}


def test_only_what_rests_on_held_entries_is_acknowledged():
    house_keeper = keeper()
    (world,) = JOB.plan.tasks[2].outputs
    house_keeper.handle(ev.Opened(world, 1, OLD))
    took = encode_record([Order(0, 1, 3, 1, 0)])  # an item made at position 3 of the source
    data = msg.Data(world, OLD, None, (Run(1, OLD, 1, (took,)),))
    house_keeper.handle(ev.Received(world, 1, data))
    house_keeper.take_records()
    assert acknowledged(house_keeper)[1] == 0
    house_keeper.append([Run(0, OLD, 1, (SOURCE, SOURCE, SOURCE))])
    house_keeper.handle(ev.Received(world, 1, msg.Data(world, OLD, None, ())))
    house_keeper.take_records()
    assert acknowledged(house_keeper)[1] == 1


def test_what_waited_for_a_resolution_is_journaled():
    house_keeper = keeper()
    (world,) = JOB.plan.tasks[2].outputs
    house_keeper.handle(ev.Opened(world, 1, OLD))
    house_keeper.committed()
    house_keeper.fence(1, NEW)
    data = msg.Data(world, OLD, None, (Run(1, NEW, 1, (SOURCE,)),))
    house_keeper.handle(ev.Received(world, 1, data))
    house_keeper.resolve(msg.Resolve(1, NEW, 0))
    again = keeper()
    again.recover(house_keeper.take_records())
    assert again.length(1) == house_keeper.length(1) == 1


def test_a_welcome_goes_to_the_receiver_that_waits_for_one_and_to_no_later_life():
    """The later one has read a log instead, and takes the items from its floor on."""
    rows = batch_of(((1, 1),))
    log = Run(0, OLD, 1, (encode_record([Source(1, rows.digest, None)]),))
    task = machine(0, (log,))
    task.handle(msg.Connect(msg.Peer(0, OLD, "a")))
    task.handle(ev.Answered(0, 1, msg.Hello(0, OLD, 9, 9, {}, 0)))
    task.handle(msg.Connect(msg.Peer(0, NEW, "b")))
    task.handle(ev.Answered(0, 2, msg.Hello(0, NEW, 1, 0, {})))
    task.handle(ev.SourceRows(rows))
    assert [data.item.seq for data in sent(task.step())] == [1]


def test_a_loss_that_was_forgiven_stays_so_when_the_task_is_cut_again():
    house_keeper = keeper()
    for incarnation, reset in ((NEW, True), (NEWER, False)):
        house_keeper.fence(0, incarnation)
        house_keeper.resolve(msg.Resolve(0, incarnation, 24, 1, reset))
    house_keeper.advance(1, {0: 24, 1: 30, 2: 30}, {0: (), 1: (), 2: ()}, {})
    later = Fences()
    for cut in house_keeper.resolved:
        later.resolve(cut.task, cut.incarnation, cut.length, forgive=cut.reset)
    assert later.judge({0: Dependency(OLD, 25)}) is Trust.VALID


def source_with_log(*steps):
    """The source task, live after a log of so many rows per step."""
    rows = [batch_of(((number, count),)) for number, count in enumerate(steps)]
    records = tuple(encode_record([Source(1, batch.digest, None)]) for batch in rows)
    task = machine(0, (Run(0, OLD, 1, records),))
    for batch in rows:
        task.handle(ev.SourceRows(batch))
        task.step()
    return task


def test_who_starts_over_gets_all_that_was_made_since_the_cut_also_by_a_later_life():
    """The cut was at step 2; the life that made step 3 died before it could say welcome."""
    task = source_with_log(1, 1, 1)
    task.handle(msg.Connect(msg.Peer(0, OLD, "a")))
    welcome, *data = sent(task.handle(ev.Answered(0, 1, msg.Hello(0, OLD, 9, 9, {}, 2))))
    assert welcome.next_seq == 3
    assert [each.item.seq for each in data] == [3]


def test_a_later_cut_does_not_move_where_a_receiver_starts_over():
    channel = Inbound(JOB.plan, JOB.plan.channels[0], 0, 0)
    channel.start_over(10)
    channel.start_over(12)
    channel.open(1)
    assert channel.hello(OLD, LogBook()).reset_at == 10
    channel.start_over(8)
    channel.open(2)
    assert channel.hello(OLD, LogBook()).reset_at == 8


def whose_sender_was_forgiven():
    """A task that has taken what its sender's new life does not know; it hears from that life."""
    task = machine(1)
    task.handle(ev.Opened(0, 1, OLD))
    run = Run(0, OLD, 1, (SOURCE, SOURCE, SOURCE))
    task.handle(ev.Received(0, 1, msg.Data(0, OLD, item(1, {0: Dependency(OLD, 3)}), (run,))))
    assert task.step() is not None
    task.handle(msg.Fence(0, NEW))
    task.handle(msg.Resolve(0, NEW, 2, 1, reset=True))
    task.handle(ev.Opened(0, 2, NEW))
    return task


def test_what_was_forgiven_once_does_not_make_a_receiver_start_over_again():
    task = whose_sender_was_forgiven()
    task.handle(ev.Received(0, 2, msg.Welcome(0, NEW, 3, 0)))
    task.handle(msg.Fence(0, NEWER))
    task.handle(msg.Resolve(0, NEWER, 3, 2, reset=True))
    assert task.inputs[0].reset_at is None


def test_the_clock_does_not_go_back_behind_a_timer():
    """A timer is due by the slot's clock; the next life may have another one."""
    world = NoWorld(lambda content: batch_of(JOB.decode(content)))
    timer, time = Timer(1_000), TaskTime(world)
    step = RunningStep(1, timer, world, time, clock_ms=900, wake_ms=None, now_ms=1_000)
    assert step.floor_clock_ms == 1_000


def test_a_sender_hears_that_its_receiver_is_live_after_it_has_started_over():
    """Else it counts as away, and its sender goes on without a bound, until its next step."""
    task = whose_sender_was_forgiven()
    (told,) = task.handle(ev.Received(0, 2, msg.Welcome(0, NEW, 3, 0)))
    assert told == ev.Reply(2, msg.Credit(0, 2, relaxed=False))


def test_of_two_forgiven_losses_both_stay_forgiven():
    fences = Fences()
    fences.resolve(0, NEW, 10, forgive=True)
    fences.resolve(0, NEWER, 20, forgive=True)
    fences.resolve(0, Incarnation(1, 3), 12)
    assert fences.judge({0: Dependency(OLD, 15)}) is Trust.VALID
    assert fences.judge({0: Dependency(NEWER, 15)}) is Trust.ORPHAN


def test_a_cut_at_the_floor_is_still_needed():
    """An entry above the floor says that it took what was lost right behind it."""
    house_keeper = keeper()
    for incarnation, length, reset in ((NEW, 24, True), (NEWER, 30, True)):
        house_keeper.fence(0, incarnation)
        house_keeper.resolve(msg.Resolve(0, incarnation, length, 1, reset))
    house_keeper.advance(1, {0: 24, 1: 30, 2: 30}, {0: (), 1: (), 2: ()}, {})
    assert [cut.length for cut in house_keeper.resolved if cut.task == 0] == [24, 30]


def test_what_is_journaled_of_an_output_is_what_it_counts_as_depending_on():
    house_keeper = keeper()
    (world,) = JOB.plan.tasks[2].outputs
    house_keeper.handle(ev.Opened(world, 1, OLD))
    house_keeper.fence(0, NEW)
    house_keeper.resolve(msg.Resolve(0, NEW, 0, 1, reset=True))
    dep = {0: Dependency(OLD, 5)}
    house_keeper.handle(ev.Received(world, 1, msg.Data(world, OLD, item(1, dep), ())))
    again = keeper()
    again.recover(house_keeper.take_records())
    deps = [{c: i.consumed_dep for c, i in k.inputs.items()} for k in (again, house_keeper)]
    assert deps[0] == deps[1]
    assert not again.depends_on_lost(0, NEWER, 3)


def test_a_layer_sealed_before_a_reset_was_heard_of_makes_no_floor():
    """The receiver counts items of the old life; its sender has numbered others since."""
    house_keeper = keeper()
    coordinator = Coordinator(JOB.plan, house_keeper, address="k", standbys=0, availability=True)
    for slot in range(3):
        coordinator.handle(SlotReady(slot, f"slot{slot}", "group"), 0)
    coordinator.start()

    def say(task, report):
        assert task.slot is not None
        coordinator.handle(Reported(task.slot, report), 0)

    for task in coordinator.tasks.values():
        say(task, msg.Restored(task.id, task.incarnation))
        say(task, msg.Live(task.id, task.incarnation, 0))
    house_keeper.generation = 1  # a reset, of which task 1 has not heard
    floors = []
    for epoch, generations in ((1, (1, 0, 1)), (2, (1, 1, 1))):
        coordinator.begin_epoch()
        for task in coordinator.tasks.values():
            ref = LayerRef(task.id, epoch, task.incarnation, epoch, "path", 1, 0)
            known = generations[task.id]
            ack = msg.LayerAck(task.id, task.incarnation, ref, {}, {}, {}, known)
            say(task, ack)
        floors.append(house_keeper.epoch)
    assert floors == [0, 2]
