"""What a job has taken back after a rewind, noted in the folder of its output.

To delete that output is not enough. A process of the job's former life may have been frozen while
it wrote: its file appears when all others are gone. So a note says first what does not count::

    <folder>/_taken_back-<generation>.json      by task, the last number that stays

It concerns all generations before its own. It is written before any output of its own generation,
and never changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from clonos.storage.files import Info
from clonos.storage.folder import Folder

_NAME: Final = re.compile(r"_taken_back-(\d+)\.json")
_NO_LIMIT: Final = 1 << 62


class _Note(NamedTuple):
    generation: int
    stays: Mapping[int, int]


class TakenBack(NamedTuple):
    """All notes of a folder.

    Examples
    --------
    >>> taken_back = TakenBack((_Note(3, {0: 17}),))
    >>> taken_back.counts(0, 2, 17), taken_back.counts(0, 2, 18), taken_back.counts(0, 3, 18)
    (True, False, True)
    """

    notes: tuple[_Note, ...]

    def last(self, task: int, generation: int) -> int:
        """The last number of a task in a generation that counts."""
        limits = (
            n.stays[task] for n in self.notes if n.generation > generation and task in n.stays
        )
        return min(limits, default=_NO_LIMIT)

    def counts(self, task: int, generation: int, seq: int) -> bool:
        """Whether an output was not taken back. Those of tasks that no note knows, which the sink
        had in an earlier graph, never were."""
        return seq <= self.last(task, generation)


class Notes:
    """The notes in the folders of a store. Those that were read are not read again."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._known = folder, dict[str, _Note]()

    def write(self, under: str, generation: int, stays: Mapping[int, int]) -> None:
        """Note that this generation has begun, and what stays of those before it. The note is
        durable when this returns."""
        content = json.dumps({str(task): seq for task, seq in sorted(stays.items())}).encode()
        name = _path(under, f"_taken_back-{generation:06d}.json")
        self._folder.keep(name, content, lambda found: _said(found.to_pybytes()) == dict(stays))

    def among(self, entries: Iterable[Info], under: str = "") -> TakenBack:
        """The notes among the files of a folder.

        Raises `OSError` or `ValueError` if one cannot be read.
        """
        notes = []
        for info in entries:
            if match := _NAME.fullmatch(info.name):
                name = _path(under, info.name)
                if name not in self._known:
                    said = _said(self._folder.read(name).to_pybytes())
                    self._known[name] = _Note(int(match[1]), said)
                notes.append(self._known[name])
        return TakenBack(tuple(notes))


def _path(under: str, name: str) -> str:
    return f"{under}/{name}" if under else name


def _said(content: bytes) -> dict[int, int]:
    return {int(task): int(seq) for task, seq in json.loads(content).items()}
