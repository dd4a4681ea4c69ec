"""Passive standbys: programs that follow a task's floors, layer by layer, without running."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from clonos.core import messages as msg
from clonos.core.layer import IN_PLACE_BYTES
from clonos.core.levels import STORE, LayerRef
from clonos.core.plan import NOBODY, Plan
from clonos.core.program import Program
from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.nodes.ports import Prefetch, SlotPorts


class Standby:
    """The state of one task up to some epoch.

    Parameters
    ----------
    make
        Makes a new program of the task.

    Attributes
    ----------
    base
        The path of the first layer when it began.
    """

    def __init__(self, make: Callable[[], Program]) -> None:
        self._make = make
        self._program: Program | None = None
        self.floor: Layer | None = None
        self.base = ""

    def renewed(self) -> Standby:
        """An empty one of the same task."""
        return Standby(self._make)

    def let_go(self) -> None:
        """Give up its program, and the files of it."""
        if self._program is not None:
            self._program.let_go()
            self._program = None

    @property
    def program(self) -> Program:
        """The program to which layers are applied; made when needed, in the thread of user code."""
        if self._program is None:
            self._program = self._make()
        return self._program

    @property
    def epoch(self) -> int:
        """The epoch of the newest applied layer; 0: none."""
        return self.floor.epoch if self.floor is not None else 0

    def missing(self, refs: Sequence[LayerRef]) -> tuple[LayerRef, ...]:
        """Return those of a task's layers that remain to be applied, in order.

        A layer has all changes since the one before it. If ours is between the two, the layer was
        merged of some that we have and others that we lack. Applied, it would add rows that are
        here; and the first layer of a task no longer says what was deleted. So the standby starts
        over.
        """
        ends = [0, *(ref.epoch for ref in refs)]
        if any(before < self.epoch < end for before, end in pairwise(ends)):
            self.let_go()
            self.floor = None
        if refs and not self.epoch:
            self.base = refs[0].path
        return tuple(ref for ref in refs if ref.epoch > self.epoch)

    def is_outdated(self, refs: Sequence[LayerRef]) -> bool:
        """Whether its first layers were merged into a large one, so that a new one would have less.

        It has the same state in files of its own, and in layers that are deleted for everybody
        else. While it keeps these open, they take room on the disk and in the system's cache.
        """
        is_merged = bool(refs and self.epoch and refs[0].path != self.base)
        is_large = is_merged and refs[0].nbytes >= IN_PLACE_BYTES
        return is_large and self._program is not None and self._program.has_left_memory

    def apply(self, layers: Iterable[Layer]) -> None:
        """Apply the layers that were missing."""
        for layer in layers:
            self.program.apply(layer.delta)
            self.floor = layer


class _Following(NamedTuple):
    """What is under way: the layers that a standby lacks are being fetched."""

    ticket: int
    command: msg.Follow
    standby: Standby
    missing: tuple[LayerRef, ...]

    @property
    def task(self) -> int:
        return self.command.task


class Copies:
    """All standbys of one slot. They follow one task at a time.

    A standby that is outdated is kept until another one has taken its place.

    Parameters
    ----------
    tickets
        Numbers for requests to the store.
    tell
        Takes reports on how far each copy has come, and of state that a copy would lose.
    fetch
        Fetches layers, given those that must be there first and those that are to be read.

    Attributes
    ----------
    standbys
        By task.
    """

    def __init__(
        self,
        plan: Plan,
        ports: SlotPorts,
        tickets: Iterator[int],
        tell: Callable[[msg.Followed | msg.TaskError], None],
        fetch: Callable[[int, Sequence[LayerRef], Sequence[LayerRef]], None],
    ) -> None:
        self.standbys: dict[int, Standby] = {}
        self._plan, self._ports, self._tickets, self._tell = plan, ports, tickets, tell
        self._fetch = fetch
        self._to_follow: dict[int, msg.Follow] = {}  # by task, the newest of each; in order
        self._following: _Following | None = None
        self._warm: dict[int, Prefetch] = {}  # of source tasks

    def follow(self, command: msg.Follow) -> None:
        """Follow a task's floor; per task only the newest request counts."""
        self._to_follow[command.task] = command
        self._follow_next()

    def _follow_next(self) -> None:
        while self._to_follow and self._following is None:
            command = self._to_follow.pop(next(iter(self._to_follow)))
            standby = self._standby(command.task)
            if standby.is_outdated(command.layers) and self._lies_here(command.layers[0]):
                standby = standby.renewed()
            missing = standby.missing(command.layers)
            self._following = _Following(next(self._tickets), command, standby, missing)
            if missing:
                self._fetch(self._following.ticket, missing, missing)
            else:
                self._apply(self._following, ())

    def _lies_here(self, ref: LayerRef) -> bool:
        """Whether a layer is used where it lies. Otherwise a new copy would have to copy all state
        once more, and have as much on the local disk as the one that there is."""
        return ref.level != STORE or self._ports.store.reads_in_place

    def _apply(self, following: _Following, layers: Iterable[Layer]) -> None:
        self._following = None
        task, standby = following.task, following.standby
        try:
            standby.apply(layers)
            if (known := self.standbys.get(task)) is not standby and known is not None:
                known.let_go()
            self.standbys[task] = standby
            self._warm_up(task, standby)
        except CannotUpgrade as error:
            self._forget(task)
            told = "CannotUpgrade", error.what, 0, error.where, error.remedy
            self._tell(msg.TaskError(task, NOBODY, *told))
        except Exception:  # noqa: BLE001 - a standby that cannot follow starts over
            self._failed(following)
        else:
            self._tell(msg.Followed(task, standby.epoch))

    def _failed(self, following: _Following) -> None:
        """A standby could not follow. The one whose place it was to take still can."""
        known = self.standbys.get(following.task)
        if known is None or known is following.standby:
            self._forget(following.task)
            return
        known.base = following.standby.base  # not again before the next merge
        self._to_follow.setdefault(following.task, following.command)

    def _forget(self, task: int) -> None:
        self.standbys.pop(task, None)
        self._tell(msg.Followed(task, -1))

    def _standby(self, task: int) -> Standby:
        known = self.standbys.get(task)
        if known is None:
            known = self.standbys[task] = Standby(lambda: self._ports.programs(task))
        return known

    def _warm_up(self, task: int, standby: Standby) -> None:
        """Keep a source's standby open at the right position, too."""
        spec = self._plan.tasks[task]
        if spec.is_source and not spec.is_gated:
            if task not in self._warm:
                self._warm[task] = self._ports.sources.open(task)
            floor = standby.floor
            rows, cut = (floor.source_rows, floor.source_cut) if floor is not None else (0, b"")
            self._warm[task].advance(rows, cut)

    def fetched(self, ticket: int, layers: Iterable[Layer]) -> None:
        """Layers were fetched; the request for them may be void by now."""
        if self._following is not None and ticket == self._following.ticket:
            self._apply(self._following, self._not_merged(self._following, layers))
            self._follow_next()

    def _not_merged(self, following: _Following, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Those layers, from the first on, that the task still has. To fetch the first one may take
        minutes, in which small ones are merged: with some of these the standby would have to start
        over, and so for ever."""
        newer = self._to_follow.get(following.task)
        if newer is None:
            return layers
        paths = {ref.path for ref in newer.layers}
        pairs = zip(following.missing, layers, strict=False)
        return (layer for _, layer in takewhile(lambda pair: pair[0].path in paths, pairs))

    def fetch_failed(self, ticket: int) -> None:
        """Layers could not be fetched."""
        if self._following is not None and ticket == self._following.ticket:
            following, self._following = self._following, None
            self._failed(following)
            self._follow_next()

    def drop(self, task: int) -> None:
        """Keep no copy of `task`."""
        self._leave(task)
        if self._ports.sources.can_reopen and task in self._warm:
            self._warm.pop(task).close()
        self._follow_next()

    def _leave(self, task: int) -> None:
        self.standbys.pop(task, None)
        self._to_follow.pop(task, None)
        if self._following is not None and self._following.task == task:
            self._following = None

    def take(self, task: int) -> tuple[Standby, Prefetch | None]:
        """`task` will run here: give away its copy (perhaps an empty one) and its source."""
        standby = self._standby(task)
        self._leave(task)
        return standby, self._warm.pop(task, None)

    def keep_only(self, tasks: Collection[int]) -> None:
        """Give up the copies of all other tasks."""
        for task in {*self.standbys, *self._to_follow, *self._warm} - set(tasks):
            self._leave(task)
            if task in self._warm:
                self._warm.pop(task).close()
        self._follow_next()

    def close(self) -> None:
        """The process ends: stop reading."""
        for prefetch in self._warm.values():
            prefetch.close()
