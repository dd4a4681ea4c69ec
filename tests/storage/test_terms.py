"""One driver after the other: whoever has the wrong journal, or comes second, is told."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from pyarrow.fs import LocalFileSystem

from clonos.errors import CannotFence, OtherJournal, Superseded, UnreadableTerm
from clonos.simulator.world.disk import Died, Disk
from clonos.storage.files import ArrowFiles, LocalFiles
from clonos.storage.folder import Folder
from clonos.storage.terms import Terms


def terms_on(files, root="/job/terms", **options):
    return Terms(Folder(files, root, "fsync"), **options)


def claim(terms, checkpoint="mine", *, position=0, before=0):
    return terms.claim(checkpoint, "/job/journal", "host", position=position, before=before)


@pytest.fixture
def terms(tmp_path):
    return terms_on(LocalFiles(), str(tmp_path / "terms"))


def test_terms_follow_each_other(terms):
    first = claim(terms)
    assert (first.number, terms.rival(first)) == (1, None)
    second = claim(terms, position=7, before=1)
    assert second.number == 2
    assert terms.rival(first) == second
    # A driver that died between its claim and its first record: the journal does not know.
    third = claim(terms, position=7, before=1)
    assert third.number == 3
    assert terms.newest() == third
    names = [info.name[-1] for info in terms._folder.entries()]
    assert names == ["2", "3"], "there are not ever more of them"


def test_another_journal_is_refused(terms):
    claim(terms)
    with pytest.raises(OtherJournal, match="/job/journal on host") as caught:
        claim(terms, "another")
    assert "journal that" in caught.value.remedy


def test_an_old_copy_of_the_journal_is_refused(terms):
    claim(terms, position=100)
    with pytest.raises(OtherJournal, match="ends at record 99"):
        claim(terms, position=99, before=1)
    assert claim(terms, position=100, before=1).number == 2


def test_a_journal_without_its_checkpoint_is_refused(terms):
    with pytest.raises(OtherJournal, match="no driver has ever begun"):
        claim(terms, before=2)


def test_a_term_that_cannot_be_read(terms):
    first = claim(terms)
    path = terms._folder.path(f"{first.number:012d}")
    for content in (b"", b"{}", b"[1]"):
        with open(path, "wb") as file:  # noqa: PTH123 - as bytes, whatever is there
            file.write(content)
        with pytest.raises(UnreadableTerm, match="cannot be read") as caught:
            claim(terms, before=1)
        assert caught.value.where == path


def test_where_nobody_is_refused_somebody_must_vouch(tmp_path):
    store = ArrowFiles(LocalFileSystem())
    with pytest.raises(CannotFence, match="cannot refuse") as caught:
        claim(terms_on(store, str(tmp_path)))
    assert "sole_driver=True" in caught.value.remedy
    vouched = terms_on(store, str(tmp_path), is_vouched=True)
    first = claim(vouched)
    assert vouched.rival(first) is None
    second = claim(vouched, before=1)
    assert vouched.rival(first) == second


@pytest.mark.parametrize("checkpoint", ["mine", "another"])
def test_of_two_drivers_one_goes_on_whenever_the_second_comes(checkpoint):
    """The second driver begins and ends its claim within each call of the first one's."""
    disk = Disk(Random(1))
    counted = disk.mount()
    claim(terms_on(counted))
    outcomes = set()
    for number in range(counted.calls):
        disk = Disk(Random(1))
        calls = 0
        second = None

        def meanwhile(_call, _path, number=number, disk=disk):
            nonlocal calls, second
            calls += 1
            if calls == number + 1:
                with suppress(OtherJournal):  # the first one was faster
                    second = claim(terms_on(disk.mount()), checkpoint)
            return 0

        disk.faults = meanwhile
        try:
            first = claim(terms_on(disk.mount()))
        except (Superseded, OtherJournal) as error:
            first = None
            outcomes.add(type(error))
        look = terms_on(disk.mount())
        going_on = [term for term in (first, second) if term and look.rival(term) is None]
        assert len(going_on) == 1
    assert Superseded in outcomes


def test_a_term_is_never_given_twice_whatever_dies():
    for seed in range(30):
        disk = Disk(Random(seed))
        given: list[int] = []
        for life in range(6):
            files = disk.mount(dies_at=disk.random.randrange(25))
            with suppress(Died):
                given.append(claim(terms_on(files), before=max(given, default=0)).number)
            if life % 2:
                disk.lose_power()
        assert given == sorted(set(given))
