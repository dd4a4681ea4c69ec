"""Which driver a checkpoint belongs to: one term after the other, each a file that one driver made.

A journal's lock only keeps other drivers off that journal: with another journal, a second driver
would write into the same folders. So each start creates the file of the next *term*, by a call that
fails if the file exists. The file says which checkpoint the driver continues, and how far its
journal has come. A driver that finds another checkpoint there, or a journal that has come further,
has the wrong journal or an old copy of it. A driver that finds a newer term has to end.

::

    terms/000000000007      the driver of this term: a line of JSON
"""

from __future__ import annotations

import errno
import json
import secrets
from dataclasses import asdict, dataclass
from typing import Final

from clonos.errors import CannotFence, OtherJournal, Superseded, UnreadableTerm
from clonos.storage.folder import Folder

_KEPT: Final = 2
"""How many terms' files are kept: it is useful to know the previous driver."""


@dataclass(frozen=True)
class Term:
    """The term of one driver.

    Attributes
    ----------
    checkpoint
        A random name from the first start of the job, the same in all its terms.
    journal, machine
        Where that driver's journal is.
    position
        How many records had been written to it when the term began.
    nonce
        A random value, by which two starts with the same number differ.
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
        It has nothing but these terms.
    is_vouched
        Whether the user makes sure that no two drivers start at once. Then the file system need not
        be able to refuse one of them.

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
            The file system cannot refuse one of two drivers, and the user does not rule them out.
        """
        if not (self._folder.files.refuses or self._is_vouched):
            raise CannotFence(
                "this file system cannot refuse one of two drivers that start at once",
                where=self._folder.root,
                remedy="keep the checkpoint on a local disk or on HDFS; or say sole_driver=True, "
                "if you make sure that no two drivers of this job ever run at once",
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
            why = "no driver has ever begun a term there, though this journal knows of one"
            is_ours = before == 0
        elif newest.checkpoint != checkpoint:
            why, is_ours = f"it belongs to {newest}", False
        else:
            why = f"this journal ends at record {position}, that of {newest} at "
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
        """The driver that has begun a later term, or has taken this one: then our term is over.

        A driver asks now and then. If the file system cannot be reached, or our term's file is not
        there any more, this raises `OSError`, and the driver does not know.
        """
        newest = self.newest()
        if newest is None or newest.number < mine.number:
            raise FileNotFoundError(
                errno.ENOENT,
                "the checkpoint has been deleted, or its folder is another one now. If this driver "
                "dies, the job cannot be continued. To do: find out who deletes there",
                self._folder.path(_name(mine.number)),
            )
        return newest if newest != mine else None

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
                f"the file that names this job's driver cannot be read: {error}",
                where=self._folder.path(name),
                remedy="if no driver of this job is running, delete the file",
            ) from error

    def _numbers(self) -> list[int]:
        return sorted(int(i.name) for i in self._folder.entries() if i.name.isdecimal())


def superseded(rival: Term, where: str) -> Superseded:
    """The error if another driver has a later term."""
    return Superseded(
        f"another driver goes on with this job: {rival}",
        where=where,
        remedy="find out who started it; this one has ended, and nothing is lost",
    )


def taken_over(where: str) -> Superseded:
    """The error if another driver has the journal."""
    return Superseded(
        "another driver has taken over this job's journal",
        where=where,
        remedy="if you did not expect that, find out who started it; this driver has ended, and "
        "nothing is lost",
    )


def _name(number: int) -> str:
    return f"{number:012d}"
