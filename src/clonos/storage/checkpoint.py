"""A checkpoint as its driver sees it: its id, and which driver goes on with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cached_property
from typing import Final

from clonos.storage.folder import Folder
from clonos.storage.terms import Term, Terms

OF_TASKS: Final = "job.json"
"""The file that describes the job of a checkpoint, if it runs in tasks."""
OF_QUERIES: Final = "spark.json"
"""The same, if it runs as Spark's streaming queries."""
TERMS: Final = "terms"
"""The folder of the terms."""


class Checkpoint:
    """The id of a checkpoint, kept beside the journal, and its terms.

    Parameters
    ----------
    journal
        The folder around the journal, on a local disk. Only the holder of the journal's lock may
        use it.
    machine
        The machine with that folder.
    terms
        Makes the record of the current driver, when it is needed.

    Examples
    --------
    >>> import tempfile
    >>> from clonos.storage.files import files_of
    >>> folder = Folder(*files_of(tempfile.mkdtemp()), "fsync")
    >>> checkpoint = Checkpoint(folder, "host", lambda: Terms(folder))
    >>> checkpoint.begin_term(position=0, before=0).number, checkpoint.rival()
    (1, None)
    """

    def __init__(self, journal: Folder, machine: str, terms: Callable[[], Terms]) -> None:
        self._journal, self._machine, self._make_terms = journal, machine, terms
        self.term: Term | None = None
        """This driver's term; None: it has not begun."""

    @cached_property
    def id(self) -> str:
        """The random name of this checkpoint, made at the first start of the job."""
        self._journal.create("checkpoint_id", secrets.token_hex(16).encode())
        name: bytes = self._journal.read("checkpoint_id").to_pybytes()
        return name.decode()

    @cached_property
    def _terms(self) -> Terms:
        return self._make_terms()

    @property
    def terms_uri(self) -> str:
        """Where the current driver is recorded."""
        return self._terms.where

    def get_ready(self) -> None:
        """Make the folder of the terms; :meth:`begin_term` then has less to wait for."""
        self._terms.get_ready()

    def begin_term(self, *, position: int, before: int) -> Term:
        """Go on with the checkpoint, alone; see :meth:`clonos.storage.terms.Terms.claim`."""
        journal = self._journal.root
        self.term = self._terms.claim(
            self.id, journal, self._machine, position=position, before=before
        )
        return self.term

    def rival(self) -> Term | None:
        """The later driver of this checkpoint, if there is one. To be called now and then; raises
        `OSError` if the folder cannot be reached."""
        return None if self.term is None else self._terms.rival(self.term)
