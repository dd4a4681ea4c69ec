"""Passive standbys: programs that follow a task's floors, layer by layer, without running."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from clonos.core import messages as msg
from clonos.core.decisions import NOBODY
from clonos.core.levels import LayerRef
from clonos.core.messages import Layer
from clonos.core.plan import Plan
from clonos.core.program import Program
from clonos.errors import CannotUpgrade
from clonos.nodes.ports import Prefetch, SlotPorts


class Standby:
    """The state of one task up to some epoch.

    Parameters
    ----------
    make
        Makes a new program of the task.
    """

    def __init__(self, make: Callable[[], Program]) -> None:
        self._make = make
        self._program: Program | None = None
        self.floor: Layer | None = None

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
        """Return those of a task's layers that remain to be applied, in order."""
        if refs and 0 < self.epoch < refs[0].epoch:
            # The bottom layers were merged beyond our epoch: they no longer say what was deleted
            # since.
            self._program = self.floor = None
        return tuple(ref for ref in refs if ref.epoch > self.epoch)

    def apply(self, layers: Iterable[Layer]) -> None:
        """Apply the layers that were missing."""
        for layer in layers:
            self.program.apply(layer.delta)
            self.floor = layer


class Copies:
    """All standbys of one slot. They follow one task at a time.

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
        self._following: tuple[int, msg.Follow] | None = None  # ticket, command
        self._warm: dict[int, Prefetch] = {}  # of source tasks

    def follow(self, command: msg.Follow) -> None:
        """Follow a task's floor; per task only the newest request counts."""
        self._to_follow[command.task] = command
        self._follow_next()

    def _follow_next(self) -> None:
        while self._to_follow and self._following is None:
            command = self._to_follow.pop(next(iter(self._to_follow)))
            missing = self._standby(command.task).missing(command.layers)
            ticket = next(self._tickets)
            self._following = ticket, command
            if missing:
                self._fetch(ticket, missing, missing)
            else:
                self._apply(command, ())

    def _apply(self, command: msg.Follow, layers: Iterable[Layer]) -> None:
        self._following = None
        try:
            standby = self._standby(command.task)
            standby.apply(layers)
            self._warm_up(command.task, standby)
        except CannotUpgrade as error:
            self._forget(command.task)
            told = "CannotUpgrade", error.what, 0, error.where, error.remedy
            self._tell(msg.TaskError(command.task, NOBODY, *told))
        except Exception:  # noqa: BLE001 - a standby that cannot follow starts over
            self._forget(command.task)
        else:
            self._tell(msg.Followed(command.task, standby.epoch))

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
            place = (floor.source_rows, floor.source_cut) if floor is not None else (0, b"")
            self._warm[task].advance(*place)

    def fetched(self, ticket: int, layers: Iterable[Layer]) -> None:
        """Layers were fetched; the request for them may be void by now."""
        if self._following is not None and ticket == self._following[0]:
            self._apply(self._following[1], layers)
            self._follow_next()

    def fetch_failed(self, ticket: int) -> None:
        """Layers could not be fetched."""
        if self._following is not None and ticket == self._following[0]:
            task, self._following = self._following[1].task, None
            self._forget(task)
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
        if self._following is not None and self._following[1].task == task:
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
