"""The book of answers by itself: owners, floors, budget, other partitions, recovery."""

import itertools
import random

import pytest

from clonos.causal.book import CHUNK_OVERHEAD, AnswerBook
from clonos.causal.entries import CALL, Entry, digest_of, encode_chunk
from clonos.causal.messages import AnswerKey
from clonos.errors import MalformedMessage
from clonos.errors.causal import BelowFloor, Fenced, LogFull, OperatorUsedTwice

A, B = object(), object()


def new_book(bytes_max=1 << 20):
    seeds = itertools.count(1)
    return AnswerBook(bytes_max, lambda: next(seeds).to_bytes(16, "big"))


def key(partition=0, batch=0, operator="f", scope="q"):
    return AnswerKey(scope, batch, operator, partition)


def append(book, session, where, chunk, execution="e1"):
    book.append(session, where, execution, chunk)
    book.take_records()
    book.committed()


def answer(question, value=b"x"):
    return Entry(digest_of(question), CALL, True, value)


def test_only_the_owner_appends():
    book = new_book()
    assert book.open(A, key(), "1", "p") == (True, 0)
    append(book, A, key(), b"one")
    assert book.open(B, key(), "2", "q") == (False, 1)
    with pytest.raises(Fenced):
        book.append(B, key(), "e1", b"two")
    book.close(A, key())
    assert book.open(B, key(), "2", "q") == (True, 1)
    with pytest.raises(Fenced):
        book.append(A, key(), "e1", b"zombie")
    assert book.read(key(), 0) == [b"one"]


def test_a_process_that_is_gone_owns_nothing():
    book = new_book()
    book.open(A, key(0), "1", "p")
    book.open(A, key(1), "2", "p")
    book.leave(A)
    assert book.open(B, key(0), "3", "q")[0]
    assert book.open(B, key(1), "4", "q")[0]


def test_taking_over_fences_a_living_owner():
    book = new_book()
    book.open(A, key(), "1", "p")
    assert book.open(B, key(), "2", "q", take_over=True) == (True, 0)
    with pytest.raises(Fenced):
        book.append(A, key(), "e1", b"late")
    book.close(A, key())
    assert book.owner(key()) is B


def test_a_process_that_was_cut_off_goes_on():
    book = new_book()
    book.open(A, key(), "1", "p")
    assert book.open(B, key(), "1", "p") == (True, 0)


def test_two_operators_of_one_attempt_with_one_name():
    book = new_book()
    book.open(A, key(), "1", "p")
    with pytest.raises(OperatorUsedTwice, match=r"causal\.operator"):
        book.open(B, key(), "1", "q")


def test_what_is_not_durable_is_not_read():
    book = new_book()
    book.open(A, key(), "1", "p")
    book.append(A, key(), "e1", b"one")
    assert book.read(key(), 0) == []
    book.take_records()
    book.committed()
    assert book.read(key(), 0) == [b"one"]


def test_a_batch_that_begins_is_the_floor():
    book = new_book()
    for batch in (7, 8):
        book.open(A, key(batch=batch), "1", "p")
        append(book, A, key(batch=batch), b"answer")
    assert book.read(key(batch=7), 0) == []
    assert book.nbytes == len(b"answer") + CHUNK_OVERHEAD
    with pytest.raises(BelowFloor, match="batch 8"):
        book.open(B, key(batch=7), "2", "q")
    with pytest.raises(BelowFloor):
        book.append(A, key(batch=7), "e1", b"zombie")
    book.open(A, key(batch=0, scope="other"), "1", "p")  # of other queries nothing is known
    assert book.read(key(batch=8), 0) == [b"answer"]


def test_forgetting_a_query_lets_it_start_anew():
    book = new_book()
    book.open(A, key(batch=7), "1", "p")
    append(book, A, key(batch=7), b"answer")
    seed = book.seed(key())
    book.truncate("q", None)
    assert book.nbytes == 0
    book.open(A, key(batch=0), "1", "p")
    assert book.seed(key()) != seed


def test_the_budget_is_kept():
    book = new_book(bytes_max=2 * (10 + CHUNK_OVERHEAD))
    for batch in range(5):  # truncation gives room
        book.open(A, key(batch=batch), "1", "p")
        append(book, A, key(batch=batch), bytes(10))
        append(book, A, key(batch=batch), bytes(10))
        with pytest.raises(LogFull, match="bytes_max"):
            book.append(A, key(batch=batch), "e1", b"")


def test_other_partitions_answer_only_for_earlier_executions():
    book = new_book()
    book.open(A, key(0), "1", "p")
    append(book, A, key(0), encode_chunk([answer("what?", b"1"), answer("what?", b"2")]))
    book.open(B, key(1), "2", "q")
    assert not book.is_shared(key(1), "e1")
    assert book.is_shared(key(1), "e2")
    digest = digest_of("what?")
    assert book.lookup(key(1), "e1", digest, 0) is None
    found = [book.lookup(key(1), "e2", digest, rank) for rank in range(3)]
    assert [f and f.answer for f in found] == [b"1", b"2", None]
    assert book.lookup(key(0), "e2", digest, 0) is None  # its own it has by itself
    append(book, A, key(0), encode_chunk([answer("what?", b"3")]))
    found_later = book.lookup(key(1), "e2", digest, 2)
    assert found_later is not None


def test_recovery_gives_the_same_book():
    draw = random.Random(1)
    book, records = new_book(), []
    for number in range(400):
        where = key(draw.randrange(3), draw.randrange(number // 100 + 1), draw.choice("fg"))
        try:
            book.open(A, where, str(number), "p")
            book.append(A, where, f"e{number % 3}", bytes(draw.randrange(50)))
        except BelowFloor:
            pass
        if draw.random() < 0.01:
            book.truncate("q", None)
        records += book.take_records()
        book.committed()
    everything = list(book.snapshot())
    assert len(everything) > 10
    for source in (records, everything):
        again = new_book()
        again.recover(source)
        assert list(again.snapshot()) == everything
        assert again.nbytes == book.nbytes


def test_a_foreign_journal_is_refused():
    with pytest.raises(MalformedMessage, match="no log of answers"):
        new_book().recover([b"\x93\x01\x02\x03"])
