"""The causal log of a job that runs as Spark's plans: starts and ends with the job."""

from __future__ import annotations

import tempfile
from typing import Any, Final

from clonos import causal
from clonos.causal import process
from clonos.dataframes.asking import require_asked_once
from clonos.errors import DefinitionError
from clonos.graph.logical import LogicalGraph
from clonos.storage.files import files_of

_FOLDER: Final = "answers"
"""In the job's checkpoint."""


class Answers:
    """The log of one job; empty if the job asks nothing or the driver already has a log."""

    _open: Answers | None = None
    """The answers of the job that started the driver's log."""

    def __init__(self, log: causal.Log | None = None, scratch: Any = None) -> None:
        self._log, self._scratch = log, scratch
        self.is_ours = log is not None
        if log is not None:
            Answers._open = self

    @classmethod
    def of(cls, graph: LogicalGraph, spark: Any) -> Answers:
        """Start the log that a job needs.

        Raises
        ------
        NotInSpark
            Several plans would make the same calls.
        DefinitionError
            There is no place for the log, or another job's log is open.
        """
        if not require_asked_once(graph.vertices):
            return cls()
        if process.access() is not None:
            if cls._open is None:  # the user's
                return cls()
            raise DefinitionError(
                "another job has the log of this driver, which ends with it",
                where=graph.name,
                remedy="call causal.start(spark, directory) before both jobs, or wait",
            )
        folder = graph.options.checkpoint_dir
        if folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="clonos-answers-")
            return cls(causal.start(spark, scratch.name, run=graph.name), scratch)
        files, path = files_of(folder)
        if not files.is_local:
            raise DefinitionError(
                f"answers are logged on a local disk, and {folder} is not on one",
                where=graph.name,
                remedy='call causal.start(spark, store="postgresql://...") before',
            )
        return cls(causal.start(spark, f"{path}/{_FOLDER}", run=graph.name))

    def done(self) -> None:
        """The run is complete: these answers are not needed again."""
        if self._log is not None:
            self._log.done()

    def stop(self) -> None:
        """End the log; answers in the checkpoint stay there."""
        log, self._log = self._log, None
        if log is not None:
            Answers._open = None
            log.stop()
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
