"""The book of answers by itself: owners, floors, budget, other partitions, recovery."""

import itertools
import random

import pytest

from clonos.causal.entries import CALL, Entry, digest_of, encode_chunk
from clonos.causal.errors import BelowFloor, Fenced, LogFull, OperatorUsedTwice
from clonos.causal.keeper import CHUNK_OVERHEAD, Keeper
from clonos.causal.messages import Place
from clonos.errors import MalformedMessage

A, B = object(), object()


def new_keeper(bytes_max=1 << 20):
    seeds = itertools.count(1)
    return Keeper(bytes_max, lambda: next(seeds).to_bytes(16, "big"))


def place(partition=0, batch=0, operator="f", scope="q"):
    return Place(scope, batch, operator, partition)


def append(keeper, session, where, chunk, execution="e1"):
    keeper.append(session, where, execution, chunk)
    keeper.committed(keeper.take_records()[1])


def answer(question, value=b"x"):
    return Entry(digest_of(question), CALL, True, value)


def test_only_the_owner_appends():
    keeper = new_keeper()
    assert keeper.open(A, place(), "1", "p") == (True, 0)
    append(keeper, A, place(), b"one")
    assert keeper.open(B, place(), "2", "q") == (False, 1)
    with pytest.raises(Fenced):
        keeper.append(B, place(), "e1", b"two")
    keeper.close(A, place())
    assert keeper.open(B, place(), "2", "q") == (True, 1)
    with pytest.raises(Fenced):
        keeper.append(A, place(), "e1", b"zombie")
    assert keeper.read(place(), 0) == [b"one"]


def test_a_process_that_is_gone_owns_nothing():
    keeper = new_keeper()
    keeper.open(A, place(0), "1", "p")
    keeper.open(A, place(1), "2", "p")
    keeper.leave(A)
    assert keeper.open(B, place(0), "3", "q")[0]
    assert keeper.open(B, place(1), "4", "q")[0]


def test_taking_over_fences_a_living_owner():
    keeper = new_keeper()
    keeper.open(A, place(), "1", "p")
    assert keeper.open(B, place(), "2", "q", take_over=True) == (True, 0)
    with pytest.raises(Fenced):
        keeper.append(A, place(), "e1", b"late")
    keeper.close(A, place())
    assert keeper.owner(place()) is B


def test_a_process_that_was_cut_off_goes_on():
    keeper = new_keeper()
    keeper.open(A, place(), "1", "p")
    assert keeper.open(B, place(), "1", "p") == (True, 0)


def test_two_operators_of_one_attempt_with_one_name():
    keeper = new_keeper()
    keeper.open(A, place(), "1", "p")
    with pytest.raises(OperatorUsedTwice, match=r"causal\.operator"):
        keeper.open(B, place(), "1", "q")


def test_what_is_not_durable_is_not_read():
    keeper = new_keeper()
    keeper.open(A, place(), "1", "p")
    keeper.append(A, place(), "e1", b"one")
    assert keeper.read(place(), 0) == []
    keeper.committed(keeper.take_records()[1])
    assert keeper.read(place(), 0) == [b"one"]


def test_a_batch_that_begins_is_the_floor():
    keeper = new_keeper()
    for batch in (7, 8):
        keeper.open(A, place(batch=batch), "1", "p")
        append(keeper, A, place(batch=batch), b"answer")
    assert keeper.read(place(batch=7), 0) == []
    assert keeper.nbytes == len(b"answer") + CHUNK_OVERHEAD
    with pytest.raises(BelowFloor, match="batch 8"):
        keeper.open(B, place(batch=7), "2", "q")
    with pytest.raises(BelowFloor):
        keeper.append(A, place(batch=7), "e1", b"zombie")
    keeper.open(A, place(batch=0, scope="other"), "1", "p")  # of other queries nothing is known
    assert keeper.read(place(batch=8), 0) == [b"answer"]


def test_forgetting_a_query_lets_it_start_anew():
    keeper = new_keeper()
    keeper.open(A, place(batch=7), "1", "p")
    append(keeper, A, place(batch=7), b"answer")
    seed = keeper.seed(place())
    keeper.truncate("q", None)
    assert keeper.nbytes == 0
    keeper.open(A, place(batch=0), "1", "p")
    assert keeper.seed(place()) != seed


def test_the_budget_is_kept():
    keeper = new_keeper(bytes_max=2 * (10 + CHUNK_OVERHEAD))
    for batch in range(5):  # truncation gives room
        keeper.open(A, place(batch=batch), "1", "p")
        append(keeper, A, place(batch=batch), bytes(10))
        append(keeper, A, place(batch=batch), bytes(10))
        with pytest.raises(LogFull, match="bytes_max"):
            keeper.append(A, place(batch=batch), "e1", b"")


def test_other_partitions_answer_only_for_earlier_executions():
    keeper = new_keeper()
    keeper.open(A, place(0), "1", "p")
    append(keeper, A, place(0), encode_chunk([answer("what?", b"1"), answer("what?", b"2")]))
    keeper.open(B, place(1), "2", "q")
    assert not keeper.is_shared(place(1), "e1")
    assert keeper.is_shared(place(1), "e2")
    digest = digest_of("what?")
    assert keeper.lookup(place(1), "e1", digest, 0) is None
    found = [keeper.lookup(place(1), "e2", digest, rank) for rank in range(3)]
    assert [f and f.answer for f in found] == [b"1", b"2", None]
    assert keeper.lookup(place(0), "e2", digest, 0) is None  # its own it has by itself
    append(keeper, A, place(0), encode_chunk([answer("what?", b"3")]))
    found_later = keeper.lookup(place(1), "e2", digest, 2)
    assert found_later is not None


def test_recovery_gives_the_same_book():
    draw = random.Random(1)
    keeper, records = new_keeper(), []
    for number in range(400):
        where = place(draw.randrange(3), draw.randrange(number // 100 + 1), draw.choice("fg"))
        try:
            keeper.open(A, where, str(number), "p")
            keeper.append(A, where, f"e{number % 3}", bytes(draw.randrange(50)))
        except BelowFloor:
            pass
        if draw.random() < 0.01:
            keeper.truncate("q", None)
        new, staged = keeper.take_records()
        records += new
        keeper.committed(staged)
    everything = list(keeper.snapshot())
    assert len(everything) > 10
    for source in (records, everything):
        again = new_keeper()
        again.recover(source)
        assert list(again.snapshot()) == everything
        assert again.nbytes == keeper.nbytes


def test_a_foreign_journal_is_refused():
    with pytest.raises(MalformedMessage, match="no log of answers"):
        new_keeper().recover([b"\x93\x01\x02\x03"])
