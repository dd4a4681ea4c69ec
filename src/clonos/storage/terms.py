"""Which driver a checkpoint belongs to: one term after the other, each a file that one driver made.

A journal's lock keeps other drivers off that journal, and off nothing else: with a journal of its
own, a second driver would write into the same folders. So each start makes the file of the next
*term*, by a call that fails if it is there, and says in it which checkpoint it goes on with and how
far its journal has come. Whoever finds another checkpoint named there, or a journal that has come
further, has the wrong journal or an old copy of it. Whoever finds a newer term is no driver any
more.

::

    terms/000000000007      who drives since: a line of JSON
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Final

from clonos.errors import ClonosError
from clonos.storage.folder import Folder

_KEPT: Final = 2
"""Terms whose files are kept: it is useful to know who the previous driver was."""


class OtherJournal(ClonosError):
    """A checkpoint has been continued with another journal, or by a later state of this one."""


class Superseded(ClonosError):
    """Another driver has begun a later term."""


class CannotFence(ClonosError):
    """A file system cannot refuse one of two drivers that start at once."""


class UnreadableTerm(ClonosError):
    """Nobody can tell who drives a checkpoint."""


@dataclass(frozen=True)
class Term:
    """A driver's time.

    Attributes
    ----------
    checkpoint
        A random name, of the first start of the job: the same in all its terms.
    journal, machine
        Where that driver's journal is.
    position
        How many records had been written to it when the term began.
    nonce
        Of this start: two that have the same number differ in it.
    """

    number: int
    checkpoint: str
    journal: str
    machine: str
    position: int
    nonce: str

    def __str__(self) -> str:
        return f"term {self.number}, journal {self.journal} on {self.machine}"


class Terms:
    """The terms of one checkpoint.

    Parameters
    ----------
    folder
        Only they are in it.
    is_vouched
        The user sees to it that no two drivers start at once: then a file system will do that
        cannot refuse one of them.

    Examples
    --------
    >>> import tempfile
    >>> from clonos.storage.files import files_of
    >>> terms = Terms(Folder(*files_of(tempfile.mkdtemp()), "fsync"))
    >>> first = terms.claim("3f", "/data/journal", "host", position=0, before=0)
    >>> second = terms.claim("3f", "/data/journal", "host", position=120, before=1)
    >>> terms.rival(first) == second, terms.rival(second)
    (True, None)
    """

    def __init__(self, folder: Folder, *, is_vouched: bool = False) -> None:
        self._folder = folder
        self._is_vouched = is_vouched

    @property
    def where(self) -> str:
        return self._folder.root

    def get_ready(self) -> None:
        """Make the folder, if there is none."""
        self._folder.make_folder(self._folder.root)

    def claim(
        self, checkpoint: str, journal: str, machine: str, *, position: int, before: int
    ) -> Term:
        """Begin a term.

        Parameters
        ----------
        position
            How many records the journal has.
        before
            The last term that the journal knows of; 0: none.

        Raises
        ------
        OtherJournal
            This is not the journal with which the checkpoint has been continued.
        Superseded
            Another driver has begun a term at the same moment.
        CannotFence
            The file system could not refuse one of us, and nobody vouches for us.
        """
        if not (self._folder.files.refuses or self._is_vouched):
            raise CannotFence(
                "this file system cannot refuse one of two drivers that start at once",
                where=self._folder.root,
                remedy="keep the checkpoint on a local disk or on HDFS; or say sole_driver=True, "
                "if you see to it that no two drivers of this job ever run at once",
            )
        newest = self.newest()
        self._require_ours(newest, checkpoint, position, before)
        number = max(before, newest.number if newest else 0) + 1
        mine = Term(number, checkpoint, journal, machine, position, secrets.token_hex(8))
        self._folder.create(_name(number), json.dumps(asdict(mine)).encode())
        if (rival := self.rival(mine)) is not None:
            raise superseded(rival, self._folder.root)
        self._folder.delete(_name(n) for n in self._numbers() if n <= number - _KEPT)
        return mine

    def _require_ours(
        self, newest: Term | None, checkpoint: str, position: int, before: int
    ) -> None:
        if newest is None:
            why = "nobody has ever begun a term there, though this journal knows of one"
            is_ours = before == 0
        elif newest.checkpoint != checkpoint:
            why, is_ours = f"it belongs to {newest}", False
        else:
            why = f"this journal has come to record {position} only, that of {newest} to "
            why += f"{newest.position}: this one is an old copy"
            is_ours = newest.position <= position
        if not is_ours:
            raise OtherJournal(
                f"the checkpoint was not written with this journal: {why}",
                where=self._folder.root,
                remedy="start the job with the journal that belongs to this checkpoint_dir, or "
                "afresh with another checkpoint_dir",
            )

    def rival(self, mine: Term) -> Term | None:
        """Whoever has begun a later term, or has taken this one: then it is over with us.

        A driver asks now and then. What fails, as the file system may be out of reach, raises
        `OSError`: then it does not know.
        """
        newest = self.newest()
        is_later = newest is not None and newest.number >= mine.number
        return newest if is_later and newest != mine else None

    def newest(self) -> Term | None:
        """The last term that anybody has begun."""
        numbers = self._numbers()
        if not numbers:
            return None
        name = _name(numbers[-1])
        try:
            return Term(**json.loads(self._folder.read(name).to_pybytes()))
        except (ValueError, TypeError) as error:
            raise UnreadableTerm(
                f"who drives this job cannot be read: {error}",
                where=self._folder.path(name),
                remedy="if no driver of this job is running, delete the file",
            ) from error

    def _numbers(self) -> list[int]:
        return sorted(int(i.name) for i in self._folder.entries() if i.name.isdecimal())


def superseded(rival: Term, where: str) -> Superseded:
    """What to say when another one drives."""
    return Superseded(
        f"another driver goes on with this job: {rival}",
        where=where,
        remedy="see who started it; this one has ended, and nothing is lost",
    )


def taken_over(where: str) -> Superseded:
    """What to say when another one has the journal."""
    return Superseded(
        "another driver has taken over this job's journal",
        where=where,
        remedy="if you did not expect that, see who started it; this driver has ended, and "
        "nothing is lost",
    )


def _name(number: int) -> str:
    return f"{number:012d}"
