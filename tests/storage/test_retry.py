"""A store that is away for a while ends nothing."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from clonos.errors import StoreAway, UnusableStore
from clonos.simulator.world.disk import Disk
from clonos.storage.layers import LayerStore
from clonos.storage.retry import PAUSE_MAX_S, Retry


class Outage:
    """A disk that fails; how often it was waited for; when it is over."""

    def __init__(self, lasts: int) -> None:
        self.disk = Disk(Random(1))
        self.disk.faults = lambda *_: errno.ENOSPC if len(self.pauses) < self.lasts else 0
        self.lasts = lasts
        self.pauses: list[float] = []
        self.said: list[str] = []

    def store(self) -> LayerStore:
        retry = Retry("layers", self.pauses.append, self.said.append)
        return LayerStore("/layers", files=self.disk.mount(), retry=retry)


def test_a_layer_is_stored_when_there_is_room_again():
    outage = Outage(lasts=30)
    assert outage.store().put("3/1.layer", b"state") == 29
    assert outage.store().get("3/1.layer") == b"state"
    assert outage.pauses == sorted(outage.pauses), "they grow"
    assert outage.pauses[-1] == PAUSE_MAX_S, "and are bounded"
    assert len(outage.said) == 2, "a word at its beginning and at its end"
    assert "No space left" in outage.said[0]


@pytest.mark.parametrize("use", ["get", "has", "list", "delete", "sweep", "create"])
def test_every_use_waits(use):
    outage = Outage(lasts=0)
    outage.store().put("a", b"state")
    outage.lasts = 3
    arguments: dict[str, list[Any]] = {
        "delete": [["a"]],
        "list": [],
        "sweep": [],
        "create": ["b", b"1"],
    }
    getattr(outage.store(), use)(*arguments.get(use, ["a"]))
    assert len(outage.pauses) == 3


def test_who_is_not_needed_any_more_gives_up():
    outage = Outage(lasts=10**6)
    store = LayerStore(
        "/layers", files=outage.disk.mount(), retry=Retry("layers", lambda _: True, print)
    )
    with pytest.raises(StoreAway, match="No space"):
        store.put("a", b"state")


def test_it_knows_for_how_long_the_store_has_been_away():
    known: list[float] = []
    retry = Retry("layers", lambda _: known.append(retry.away_s), print)
    assert retry.away_s == 0

    def attempt() -> str:
        if len(known) < 2:
            raise StoreAway("the disk is full")
        return "stored"

    assert retry(attempt) == "stored"
    assert 0 < known[0] < known[1]
    assert retry.away_s == 0
    known.clear()
    with pytest.raises(OSError, match="of another kind"):
        retry(lambda: _raise(StoreAway("away") if not known else OSError("of another kind")))
    assert retry.away_s == 0, "it is not tried any more"


def _raise(error: Exception) -> None:
    raise error


def test_without_a_retry_it_is_said_at_once():
    outage = Outage(lasts=1)
    with pytest.raises(StoreAway, match="No space") as caught:
        LayerStore("/layers", files=outage.disk.mount()).put("a", b"state")
    assert caught.value.where == "/layers/a"
    assert caught.value.remedy


def test_what_was_created_by_an_attempt_that_seemed_to_fail_is_ours():
    """The store has it, and said that it has not."""
    outage = Outage(lasts=0)
    failed: list[str] = []

    def once(call: str, path: str) -> int:
        if call == "sync_folder" and not failed and outage.disk.find("/layers/a") is not None:
            failed.append(path)
            return errno.EIO
        return 0

    outage.disk.faults = once
    assert outage.store().create("a", b"mine")
    assert failed
    assert not outage.store().create("a", b"of another one")
    assert outage.store().get("a") == b"mine"


def test_what_waiting_does_not_mend_is_an_error_at_once():
    outage = Outage(lasts=10**6)
    outage.disk.faults = lambda *_: errno.EACCES
    with pytest.raises(UnusableStore, match="Permission denied") as caught:
        outage.store().put("a", b"state")
    assert "reaches it" in caught.value.remedy
    assert not outage.pauses
