"""A spool has one writer: the driver in office, whoever was frozen and thaws."""

from __future__ import annotations

import pytest

from clonos.errors import Superseded
from clonos.sources.spool import Spool
from clonos.storage import retry as retry_module
from tests.sources.test_spool import offer, read, reader, written


class Office:
    """Of a driver: until another one is in office, which `happens` at the look of this number."""

    def __init__(self, uri: str, *, happens: int = 1 << 30, store_is_away: int = 0) -> None:
        self.looks, self._happens, self._away = 0, happens, store_is_away
        self._uri = uri
        self.successor: Spool | None = None

    def __call__(self) -> None:
        self.looks += 1
        if self._away:
            self._away -= 1
            raise OSError("the folder of terms is away")
        if self.looks >= self._happens and self.successor is None:
            self.successor = Spool(self._uri, 1)
        if self.successor is not None:
            raise Superseded("another driver goes on with this job")


def test_a_driver_that_was_frozen_between_rows_and_manifest_takes_nothing(tmp_path):
    """Its successor has deleted rows that no manifest named."""
    old = Spool(str(tmp_path), 1)
    offer(old, 0, [[1, 2]])
    parts = written(old, 1, [[3, 4]])
    new = Spool(str(tmp_path), 1)
    with pytest.raises(Superseded):
        old.take("q", 1, parts)
    assert offer(new, 1, [[5]])
    assert not offer(new, 1, [[5]])  # as before: it was taken already
    assert read(reader(new)) == [1, 2, 5]
    again = Spool(str(tmp_path), 1)
    again.end()
    assert read(reader(again)) == [1, 2, 5, "end"]


@pytest.mark.parametrize("happens", [1, 2])
def test_nothing_is_safe_with_a_driver_that_is_no_longer_in_office(tmp_path, happens):
    """It would say so to the sender. Another one takes over before its manifest, or after."""
    office = Office(str(tmp_path), happens=happens)
    old = Spool(str(tmp_path), 1, office=office)
    with pytest.raises(Superseded):
        offer(old, 0, [[1, 2]])
    new = office.successor
    assert new is not None
    taken = [1, 2] if happens == 2 else []  # written in time, so it counts, but nobody was told
    assert read(reader(new)) == taken
    assert offer(new, 7, [[3]])
    new.truncate([len(taken) + 1])
    with pytest.raises(Superseded):  # even where the name of its next manifest is free by now
        offer(old, 1, [[4]])
    assert offer(new, 8, [[5]])
    again = Spool(str(tmp_path), 1)
    assert read(reader(again, rows=len(taken) + 1)) == [5]


def test_whether_a_driver_is_in_office_is_asked_until_there_is_an_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(retry_module, "FIRST_PAUSE_S", 0.001)
    office = Office(str(tmp_path), store_is_away=3)
    spool = Spool(str(tmp_path), 1, office=office)
    assert offer(spool, 0, [[1]])
    assert office.looks == 5
    assert offer(spool, 1, [[2]])
    assert office.looks == 6, "once per batch, if the last answer is young"
    assert read(reader(spool)) == [1, 2]


def test_a_driver_that_begins_takes_the_name_of_the_next_manifest_in_an_empty_spool(tmp_path):
    old = Spool(str(tmp_path), 1)
    assert old.newest is None
    new = Spool(str(tmp_path), 1)
    with pytest.raises(Superseded):
        offer(old, 0, [[1]])
    assert new.newest is None
    assert offer(new, 3, [[2]], query="any")
    assert read(reader(new)) == [2]
