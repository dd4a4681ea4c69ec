"""What is let out is durable; a write that fails is not the end."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.core import decisions as co
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.determinants import Source, encode_record
from clonos.core.digest import chain, content_digest
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.program import Batch
from clonos.errors import ClonosError
from clonos.nodes.commits import AGAIN_S, FLOORLESS, VOUCH_S, Commits, Group, State

FIRST = Incarnation(1, 0)
PLAN = Plan(
    (TaskSpec(0, "lines[0]", "lines", 0, (), (0,), is_source=True, sink="out"),),
    (ChannelSpec(0, 0, HOUSE_KEEPER, 0),),
    0,
)


ENTRY = encode_record([Source(1, 2, None)])


class Journal:
    """Writes when it is told to, or fails."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.writing: tuple[list[bytes], bool] | None = None
        self.nbytes = 0

    def append(self, records: Any) -> bool:
        assert self.writing is None
        self.writing = (list(records), False)
        return False

    def prove(self) -> bool:
        return self.append([b"proof"])

    def rotate(self, head: Any) -> bool:
        assert self.writing is None
        self.writing = (list(head), True)
        return False

    def write(self) -> None:
        assert self.writing is not None
        (records, is_anew), self.writing = self.writing, None
        self.records = records if is_anew else self.records + records

    def fail(self) -> None:
        assert self.writing is not None
        self.writing = None


class Outputs:
    """Has files, or has not."""

    def __init__(self) -> None:
        self.flushed = self.tries = self.nbytes = 0
        self.error: ClonosError | None = None

    def take(self, output: Any) -> None:
        raise AssertionError("groups are let out by the driver")

    def begin_flush(self) -> None:
        raise AssertionError("whoever is told that the end is near does that")

    def flush(self) -> ClonosError | None:
        self.tries += 1
        if self.error is None:
            self.flushed += 1
            self.nbytes = 0
        return self.error


def new_keeper() -> HouseKeeper:
    return HouseKeeper(PLAN, lambda batch: batch.payload, lambda content: content)


class World:
    """A house-keeper with one sender."""

    def __init__(self) -> None:
        self.keeper, self.journal, self.outputs = new_keeper(), Journal(), Outputs()
        self.out: list[Group] = []
        self.stuck: list[ClonosError] = []
        self.clock_s = 0.0
        self.commits = Commits(
            self.keeper,
            self.journal,
            self.outputs,
            self.out.append,
            self.stuck.append,
            rotate_bytes=100,
            output_bytes=1000,
            clock=lambda: self.clock_s,
        )
        self.keeper.begin_term(1)
        self.keeper.handle(ev.Opened(0, 7, FIRST))
        self._seq = self._chain = 0
        self.turn()
        self.journal.write()
        self.commits.committed()

    def turn(self, *actions: co.Action, at_s: float = 0.0) -> bool:
        return self.commits.end_turn(list(actions), at_s)

    def receive(self, content: bytes) -> None:
        """An output comes, with the log entry that it rests on."""
        self._seq += 1
        batch = Batch(content, 1, len(content), content_digest(content))
        self._chain = chain(self._chain, Kind.BATCH, 0, batch.digest)
        dep = {0: Dependency(FIRST, self._seq)}
        item = Item(self._seq, Kind.BATCH, 0, 0, batch, dep, self._chain)
        run = msg.Run(0, FIRST, self._seq, (ENTRY,), 0)
        self.keeper.handle(ev.Received(0, 7, msg.Data(0, FIRST, item, (run,))))

    def delivered(self) -> list[bytes]:
        outputs = [o for group in self.out for o in group.outputs]
        return [o.item.batch.payload for o in outputs if o.item.batch is not None]

    def credits(self) -> list[int]:
        replies = [r for group in self.out for r in group.reactions if isinstance(r, ev.Reply)]
        return [r.message.processed for r in replies if isinstance(r.message, msg.Credit)]

    def after_a_crash(self) -> list[bytes]:
        """What the next driver delivers again."""
        recovered = new_keeper().recover(self.journal.records)
        return [o.item.batch.payload for o in recovered if o.item.batch is not None]


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_let_out_before_it_is_durable(world):
    note = notes.Floor(1)
    world.receive(b"a")
    world.out.clear()
    assert world.turn(note)
    assert not world.out
    world.journal.write()
    world.commits.committed()
    (group,) = world.out
    assert world.delivered() == [b"a"]
    assert group.actions == [note]


def test_what_comes_while_a_group_is_written_gathers_for_the_next(world):
    world.receive(b"a")
    world.turn()
    world.receive(b"b")
    assert not world.turn(co.Done())
    world.journal.write()
    world.commits.committed()
    assert world.delivered() == [b"a"]
    assert max(world.credits()) == 1, "computed when the group was closed: b is not durable"
    assert world.turn(co.Done())
    world.journal.write()
    world.commits.committed()
    assert world.delivered() == [b"a", b"b"]
    assert world.out[-1].actions == [co.Done()]


def test_a_group_without_records_waits_for_nobody(world):
    assert world.turn(co.Done())
    assert world.out[-1].actions == [co.Done()]


def test_the_last_group_is_vouched_for_when_nothing_follows(world):
    world.receive(b"a")
    world.turn()
    world.journal.write()
    world.commits.committed()
    world.turn(at_s=VOUCH_S / 2)
    assert not world.journal.writing
    world.turn(co.Done(), at_s=VOUCH_S)
    assert world.journal.writing == ([], False)
    assert world.out[-1].actions != [co.Done()], "one at a time"
    world.commits.committed()
    assert world.out[-1].actions == [co.Done()]
    world.journal.writing = None
    world.turn(at_s=3 * VOUCH_S)
    assert not world.journal.writing


def test_what_proves_that_the_lock_is_ours(world):
    """A group with records, by when it began; not one that only vouches; an empty one, if asked."""
    commits, proven = world.commits, []
    world.receive(b"a")
    world.clock_s = 10.0
    world.turn()
    world.clock_s = 14.0  # the disk is slow
    commits.committed()
    proven.append(commits.proven_s)
    world.journal.writing = None
    world.turn(at_s=2 * VOUCH_S)
    commits.committed()  # perhaps another has vouched, and nothing was written
    proven.append(commits.proven_s)
    world.journal.writing = None
    commits.prove()
    world.turn(at_s=3 * VOUCH_S)
    assert world.journal.writing == ([b"proof"], False)
    commits.committed()
    proven.append(commits.proven_s)
    world.journal.writing = None
    commits.prove()
    world.turn(at_s=4 * VOUCH_S)
    assert not world.journal.writing, "there is a proof"
    assert proven == [10.0, 10.0, 14.0]


def test_a_large_journal_is_begun_anew_with_what_is_let_out_in_files(world):
    world.receive(b"a")
    world.turn()
    world.journal.nbytes = 200
    world.journal.write()
    world.commits.committed()
    world.commits.after_floor()
    world.receive(b"b")
    world.turn()
    assert world.outputs.flushed == 1
    world.journal.write()
    assert world.after_a_crash() == [b"b"]  # a is in a file
    world.commits.committed()
    assert world.delivered() == [b"a", b"b"]


def test_nothing_is_begun_anew_while_outputs_cannot_be_put_into_files(world):
    world.journal.nbytes = 200
    world.outputs.error = ClonosError("no space")
    world.commits.after_floor()
    world.receive(b"a")
    world.turn()
    world.journal.write()
    world.commits.committed()
    assert world.delivered() == [b"a"]
    assert world.after_a_crash() == [b"a"]
    for at_s in (0.1, 0.2, AGAIN_S, AGAIN_S + 0.1):
        world.turn(at_s=at_s)
        if world.journal.writing:
            world.journal.write()
            world.commits.committed()
    assert world.outputs.tries == 2, "not all the time"


def test_a_journal_is_begun_anew_without_a_floor_too_if_none_comes(world):
    world.receive(b"a")
    world.turn()
    world.journal.write()
    world.commits.committed()
    for nbytes in (100 * FLOORLESS - 1, 100 * FLOORLESS):
        assert world.outputs.flushed == 0
        world.journal.nbytes = nbytes
        world.turn()
    assert world.outputs.flushed == 1
    world.journal.write()
    assert world.after_a_crash() == []
    again = new_keeper()
    again.recover(world.journal.records)
    assert (again.length(0), again.inputs[0].consumed) == (1, 1), "the log is still there"


def test_nothing_is_let_out_while_too_much_waits_for_files(world):
    world.outputs.nbytes, world.outputs.error = 1000, ClonosError("no space")
    world.receive(b"a")
    assert not world.turn(co.Done())
    assert not world.turn(co.Done(), at_s=AGAIN_S / 2)
    assert world.outputs.tries == 1, "not all the time"
    assert not world.turn(co.Done(), at_s=AGAIN_S)
    assert world.stuck == [world.outputs.error] * 2
    assert world.journal.writing is None
    assert 1 not in world.credits(), "so who sends has to wait"
    world.outputs.error = None
    assert world.turn(co.Done(), at_s=2 * AGAIN_S)
    world.journal.write()
    world.commits.committed()
    assert world.delivered() == [b"a"]
    assert world.out[-1].actions == [co.Done()]


@pytest.mark.parametrize("reached_the_disk", [False, True])
def test_a_write_that_fails_is_made_good_by_a_new_segment(world, reached_the_disk):
    world.receive(b"a")
    world.turn(co.Done())
    if reached_the_disk:
        world.journal.write()
    else:
        world.journal.fail()
    world.commits.failed(5.0)
    assert world.commits.state is State.BROKEN
    assert not world.delivered()
    world.receive(b"b")  # the world goes on
    assert world.turn(at_s=5.0)
    world.journal.fail()
    world.commits.failed(5.0)
    assert not world.turn(at_s=5.0 + AGAIN_S / 2)  # not all the time
    assert world.turn(at_s=5.0 + AGAIN_S)
    world.journal.write()
    assert world.after_a_crash() == [b"a", b"b"]  # nobody has acknowledged them yet
    assert not world.delivered()
    world.commits.committed()
    assert world.delivered() == [b"a", b"b"]
    assert world.out[-1].actions == [co.Done()]
    again = new_keeper()
    again.recover(world.journal.records)
    assert (again.length(0), again.inputs[0].consumed) == (2, 2)


def test_a_broken_journal_waits_for_the_files_of_outputs(world):
    world.receive(b"a")
    world.turn()
    world.journal.fail()
    world.commits.failed(0.0)
    world.outputs.error = ClonosError("no space")
    world.turn()
    assert world.journal.writing is None
    world.outputs.error = None
    world.turn(at_s=AGAIN_S)
    world.journal.write()
    world.commits.committed()
    assert world.delivered() == [b"a"]
