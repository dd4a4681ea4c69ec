"""Who gets which answers: attempts of a task that this process plays itself."""

import threading
import time
from typing import Any

import pytest

from clonos import causal
from clonos.causal import process
from clonos.causal import task as tasks
from clonos.causal.entries import CALL, Entry, digest_of, encode_chunk
from clonos.causal.messages import AnswerKey

from .conftest import Attempt, access_to


def test_the_next_attempt_gets_the_same_answers(attempt, ask, world):
    with attempt():
        first = [ask("a"), ask("b"), ask("a")]
    with attempt():
        assert [ask("a"), ask("b"), ask("a")] == first == [0, 1, 2]
        assert ask("a") == 3  # a third time nobody had asked
    assert len(world.asked) == 4


def test_rows_in_another_order_keep_their_answers(attempt, ask, world):
    with attempt():
        first = {x: ask(x) for x in "abcdef"}
    with attempt():
        assert {x: ask(x) for x in "fedcba"} == first


def test_keys_tell_equal_calls_apart(attempt, ask, world):
    with attempt():
        first = [ask.keyed(key)("same") for key in range(3)]
    with attempt():
        assert [ask.keyed(key)("same") for key in (2, 0, 1)] == [first[i] for i in (2, 0, 1)]
    assert len(world.asked) == 3
    assert world.asked[0] == ("same",)


def test_what_a_dead_attempt_had_sent_is_used(attempt, ask, world):
    with attempt(dies=True):
        first = ask("sent")
        process.settle()
        ask("lost")
    with attempt():
        assert ask("sent") == first
        assert ask("lost") not in (0, 1)
    assert len(world.asked) == 3


def test_it_is_sent_soon_without_being_asked_to(attempt, server, ask):
    with attempt(dies=True):
        ask("a")
        time.sleep(20 * tasks.LINGER_S)
        assert server.nbytes > 0
    with attempt():
        assert ask("a") == 0


def test_partitions_operators_and_batches_have_logs_of_their_own(attempt, ask, world):
    streaming = {"sql.streaming.queryId": "q"}
    places: list[Any] = [
        {"partition": 0},
        {"partition": 1},
        {"streaming.sql.batchId": "0", **streaming},
        {"streaming.sql.batchId": "1", **streaming},
        {"clonos.causal.run": "day 1"},
    ]
    for number, properties in enumerate(places):
        with attempt(**properties):
            assert ask("a") == number
    with attempt():
        with process.named("another"):
            assert ask("a") == 5
        assert causal.service(world, name="other")("a") == 6


def test_another_layout_finds_the_answers_of_other_partitions(attempt, ask, world):
    for partition in (0, 1):
        with attempt(partition):
            for x in range(3):
                ask(10 * partition + x)
    with attempt(0, execution="2"):
        assert [ask(x) for x in (12, 11, 10, 2, 1, 0)] == [5, 4, 3, 2, 1, 0]
        assert ask("new") == 6
    with attempt(0, execution="2"):  # its retry has them as its own
        assert [ask(x) for x in (12, 11, 10, 2, 1, 0, "new")] == [5, 4, 3, 2, 1, 0, 6]
    assert len(world.asked) == 7


def test_equal_calls_of_one_execution_are_not_merged(attempt, ask, world):
    for partition in (0, 1):
        with attempt(partition):
            assert ask("same") == partition


def test_a_copy_waits_for_the_one_that_runs(server, attempt, ask, world):
    """Speculation: the log has an owner, and the copy follows it."""
    where = AnswerKey("run", 0, "test_a_copy_waits_for_the_one_that_runs", 0)
    first = attempt.access.holder()
    first.open(where, "another attempt", "term/1")
    question = digest_of(["ask", None, ["a"], []])
    entry = Entry(question, CALL, True, b"\x2a")

    def go_on():
        time.sleep(0.2)
        first.append(where, "term/1", encode_chunk([entry]))
        time.sleep(0.2)
        first.close()  # it dies: the copy is on its own

    running = threading.Thread(target=go_on)
    running.start()
    with attempt(), process.named(where.operator):
        assert ask("a") == 42
        assert world.asked == []
        assert ask("b") == 0
    running.join()


def test_a_copy_takes_over_from_one_that_hangs(server, ask, world):
    where = AnswerKey("run", 0, "f", 0)
    hanging = access_to(server).holder()
    hanging.open(where, "another attempt", "term/1")
    with Attempt(access_to(server, patience_s=0.3))(), process.named("f"):
        assert ask("a") == 0
    with pytest.raises(causal.Fenced):
        hanging.append(where, "term/1", b"late")
    hanging.close()


def test_an_attempt_that_was_cut_off_goes_on(attempt, ask, world):
    with attempt():
        ask("a")
        process.settle()
        ask("b")
        process.holder().close()  # the network
        process.settle()
        ask("c")
    with attempt():
        assert [ask(x) for x in "abc"] == [0, 1, 2]


def test_a_reply_that_was_lost_is_not_appended_twice(attempt, ask, server, monkeypatch):
    with attempt():
        ask("a")
        known = process.holder()
        append = known.append

        def lose_the_reply(*arguments):
            append(*arguments)
            monkeypatch.undo()
            known.close()
            raise causal.LogUnreachable("the reply is lost")

        monkeypatch.setattr(known, "append", lose_the_reply)
        process.settle()
        ask("b")
    with attempt():
        assert [ask(x) for x in "aba"] == [0, 1, 2]


def test_a_log_that_is_truncated_while_it_is_read(attempt, ask, monkeypatch):
    """A leftover attempt: its batch is committed while it looks for its answers."""
    with attempt():
        ask("a")

    def leftover():
        known = process.holder()
        open_log = known.open

        def is_committed_then(*arguments, **options):
            opened = open_log(*arguments, **options)
            known.forget("run")
            return opened

        monkeypatch.setattr(known, "open", is_committed_then)
        ask("a")

    with pytest.raises(causal.BelowFloor), attempt():
        leftover()
